package runtime

import (
	"maps"
	"slices"

	"yoi.dev/yoi-runtime/policy"
)

// baseEnvironment is what every Worker gets; nothing of the caller's is
// inherited. The policy's variables and the request's go before it.
var baseEnvironment = map[string]string{
	"PATH":    "/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME":    "/home/worker",
	"USER":    "worker",
	"LOGNAME": "worker",
	"SHELL":   "/bin/sh",
	"LANG":    "C.UTF-8",
	"TMPDIR":  "/tmp",
}

// bundleEnvironment says where a configuration bundle is.
func bundleEnvironment(p policy.SandboxPolicy) map[string]string {
	if p.ConfigBundle == "" {
		return nil
	}
	return map[string]string{"YOI_CONFIG": policy.BundleAt}
}

// environment merges the base, the policy's and the request's variables into
// NAME=VALUE, sorted.
func environment(repo policy.RepositoryID, layers ...map[string]string) []string {
	env := maps.Clone(baseEnvironment)
	env["YOI_WORKSPACE"] = policy.WorkspacePath(repo)
	env["YOI_SCRATCH"] = "/scratch"
	for _, l := range layers {
		maps.Copy(env, l)
	}
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}
