package helper

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// View is one path that a Worker sees.
type View struct {
	Path   string `json:"path"`
	Access string `json:"access"` // "read", "read and write", "nothing"
	What   string `json:"what"`
}

// explained stands for what a plan gets from a Runtime root.
type explained struct{}

func (explained) source(rel string, _ mounts.Attr) (mounts.Source, error) {
	return mounts.Source{Path: rel}, nil
}

func (explained) image(rel string, _ bool) (mounts.Source, error) {
	return mounts.Source{Path: rel}, nil
}

func (explained) direct(*os.File, mounts.Attr) (mounts.Source, error) { return mounts.Source{}, nil }

// Explain lists the file system of a Worker under a policy on this host, by the
// same plan that a launch would make. REPOSITORY stands for a repository's id.
func Explain(p policy.SandboxPolicy) ([]View, error) {
	p = p.Normalize()
	req := LaunchRequest{
		AllocationID: "explained", RepositoryID: "REPOSITORY", Root: p.Root,
		HostNetwork: p.Network.Mode == policy.NetworkHost, NoExec: p.ScratchNoExec, ConfigBundle: p.ConfigBundle,
		Repositories: []RepositoryTree{{RepositoryID: "REPOSITORY", Strategy: policy.StrategyCopy}},
	}
	var views []View
	if name, ok := p.Root.Image(); ok {
		views = append(views, View{"/", "read", "the image " + string(name) + ", without setuid programs and devices"})
		req.Root = policy.RootMinimal
	}
	host, err := readHostRoot()
	if err != nil {
		return nil, policy.Errorf(policy.CodeUnsupported, "helper.explain", "the host's system directories cannot be read").Because(err)
	}
	if req.Tools = p.Tools; len(p.Tools) > 0 {
		if req.tools, err = host.tools.Get(p.Tools); err != nil {
			return nil, err
		}
	}
	plan, err := buildPlan(req, host, nil, explained{})
	if err != nil {
		return nil, err
	}
	for _, op := range plan.Ops {
		if v, ok := viewOf(op, p); ok {
			views = append(views, v)
		}
	}
	for _, s := range p.Secrets {
		if s.As == policy.SecretFile {
			views = append(views, View{policy.SecretsAt + "/" + s.Target(), "read", "the secret " + string(s.Handle) + ", in memory, gone with the Worker"})
		}
	}
	if p.BuildCache {
		views = append(views, View{buildCacheAt, "read and write", "the project's build cache, with a layer of the workspace's own"})
	}
	return views, nil
}

func access(readOnly bool) string {
	if readOnly {
		return "read"
	}
	return "read and write"
}

func viewOf(op mounts.Op, p policy.SandboxPolicy) (View, bool) {
	at := op.Where()
	switch o := op.(type) {
	case mounts.Bind:
		return View{at, access(o.Attr.ReadOnly), "the host's " + at}, true
	case mounts.File:
		if isGenerated(at) {
			return View{at, "read", "made for the sandbox"}, true
		}
		return View{at, "read", "a copy of the host's"}, true
	case mounts.Symlink:
		return View{at, "read", "a link to " + o.To}, true
	case mounts.Proc:
		return View{at, access(false), "the sandbox's own processes; others' are hidden"}, true
	case mounts.Dev:
		return View{at, access(false), "null, zero, full, random, urandom, tty, terminals of its own, private shared memory"}, true
	case mounts.Tmpfs:
		return View{at, access(o.Attr.ReadOnly), "in memory, gone with the Worker"}, true
	case mounts.Mask:
		return View{at, "nothing", "covered"}, true
	case mounts.ReadOnlyPath:
		return View{at, "read", "of the host, not to be changed"}, true
	case mounts.Overlay:
		what := "the working tree, with a private .git"
		switch {
		case at == scratchAt:
			what = "scratch space of the workspace"
			if p.ScratchNoExec {
				what += ", from which nothing is executed"
			}
		case at == policy.BundleAt:
			what = "the configuration bundle " + string(p.ConfigBundle)
		case strings.HasPrefix(at, objectsAt):
			what = "the repository's objects in the cache, for git"
		}
		return View{at, access(o.Attr.ReadOnly), what}, true
	}
	return View{}, false
}

func isGenerated(target string) bool {
	return slices.ContainsFunc(generatedEtc(nil), func(op mounts.Op) bool { return op.Where() == target })
}

// ExplainLandlock says what Landlock adds on this kernel.
func ExplainLandlock(p policy.SandboxPolicy) string {
	req := LaunchRequest{Mounts: p.Normalize().Seccomp == policy.SeccompNested, Require: p.Require, caches: &cacheUses{}}
	if p.BuildCache {
		req.caches.Build = new(buildCacheUse)
	}
	ll, abi, err := landlockFor(req, nsexec.LandlockABI())
	switch {
	case err != nil:
		return "Landlock: required, and this kernel does not have it as needed: no Worker would start."
	case ll == nil:
		return "Landlock: not on this kernel, and not required."
	case req.Mounts:
		return fmt.Sprintf("Landlock, ABI %d: no signals and abstract sockets beyond the sandbox. Files are left to the mounts, since this profile's Workers mount.", abi)
	}
	return fmt.Sprintf("Landlock, ABI %d: changes only beneath %s; no mounting; signals and abstract sockets within the sandbox from ABI 6 on.", abi, strings.Join(ll.Writable, ", "))
}
