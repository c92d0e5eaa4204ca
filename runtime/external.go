package runtime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp/compile"
)

// ExternalConfig is the operator's own way to make a tree: a command that runs
// for each new workspace of the strategy external.
type ExternalConfig struct {
	// Command is argv. The program lies below /usr, which is what it sees of the
	// host beside its two directories.
	Command []string `toml:"command"`
	// TimeLimit is a duration such as "90s"; "" is one minute.
	TimeLimit string `toml:"time_limit"`
	// Network is "none", the default, or "host".
	Network string `toml:"network"`
}

const externalTimeLimit = time.Minute

func (c ExternalConfig) limit() (time.Duration, error) {
	if c.TimeLimit == "" {
		return externalTimeLimit, nil
	}
	d, err := time.ParseDuration(c.TimeLimit)
	if err != nil || d < time.Second || d > 24*time.Hour {
		return 0, policy.Errorf(policy.CodeConfigInvalid, "runtime.config", "external.time_limit: %q is no duration from 1s to 24h", policy.Printable(c.TimeLimit))
	}
	return d, nil
}

func (c ExternalConfig) validate() error {
	const op = "runtime.config"
	if _, err := c.limit(); err != nil {
		return err
	}
	switch c.Network {
	case "", string(policy.NetworkNone), string(policy.NetworkHost):
	default:
		return policy.Errorf(policy.CodeConfigInvalid, op, "external.network: %q is not none or host", policy.Printable(c.Network))
	}
	if len(c.Command) == 0 {
		return nil
	}
	if err := policy.ValidateCommand(c.Command); err != nil {
		return policy.Errorf(policy.CodeConfigInvalid, op, "external.command: %s", policy.AsDiagnostic(err).Message)
	}
	if p := c.Command[0]; path.Clean(p) != p || !strings.HasPrefix(p, "/usr/") {
		return policy.Errorf(policy.CodeConfigInvalid, op, "external.command: %q does not lie below /usr, which is all that the command's sandbox has of the host", policy.Printable(p))
	}
	return nil
}

// unconfigured is why the strategy external is not possible, "" if it is.
func (c ExternalConfig) unconfigured() string {
	if len(c.Command) == 0 {
		return "no command is configured"
	}
	return ""
}

const externalFix = "Set external.command in config.toml."

// openDirectories gives the command its two directories as descriptors, which
// stay open for what it starts.
const openDirectories = `exec "$@" 3</run/yoi/source 4</run/yoi/target`

// external has the operator's command make each repository's tree.
func (c *creation) external(ctx context.Context) error {
	for i, t := range c.made.Repositories {
		began := time.Now()
		if err := c.runExternal(ctx, t); err != nil {
			return err
		}
		made, err := c.r.helper.Adopt(ctx, helper.MaterializeRequest{AllocationID: c.id, Repositories: c.made.Repositories[i : i+1]})
		if err != nil {
			return err
		}
		c.r.measured(policy.StrategyExternal, t.Files, time.Since(began))
		c.made.Files += made.Files
		c.made.Bytes += made.Bytes
	}
	return nil
}

// runExternal runs the command in a sandbox, to its end.
func (c *creation) runExternal(ctx context.Context, t helper.RepositoryTree) error {
	const op = "runtime.external"
	cfg := c.r.config().External
	limit, err := cfg.limit()
	if err != nil {
		return err
	}
	filter, err := compile.Filter(policy.SandboxPolicy{}.Normalize())
	if err != nil {
		return err
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return policy.AsDiagnostic(err)
	}
	defer pr.Close()
	id := policy.NewWorkerID()
	target := string(c.id) + "/" + string(t.RepositoryID)
	launched, err := c.r.helper.Launch(ctx, helper.LaunchRequest{
		WorkerID: id, AllocationID: c.id, Repositories: []helper.RepositoryTree{t}, RepositoryID: t.RepositoryID,
		Command: append([]string{"/bin/sh", "-c", openDirectories, "external"}, cfg.Command...),
		Env: environment(t.RepositoryID, nil, map[string]string{
			"YOI_SOURCE_ID": string(t.RepositoryID) + "/" + t.TreeKey, "YOI_TARGET_ID": target,
			"YOI_SOURCE_FD": "3", "YOI_TARGET_FD": "4", "YOI_WORKSPACE": "",
		}),
		Root: policy.RootSystem, HostNetwork: cfg.Network == string(policy.NetworkHost),
		Limits: policy.Limits{WallClock: limit}, DieWithParent: true, Transient: true, External: true,
	}, helper.LaunchFiles{Stdio: [3]*os.File{nil, pw, pw}, Filter: filter})
	pw.Close()
	if err != nil {
		return err
	}
	launched.Pidfd.Close()
	said := make(chan string, 1)
	go func() { said <- tail(pr) }()
	o, err := c.r.helper.Wait(ctx, id)
	if err != nil {
		after := context.WithoutCancel(ctx)
		err = errors.Join(err, c.r.helper.Kill(after, id))
		_, _ = c.r.helper.Wait(after, id) // the workspace is taken away next
		return err
	}
	output := <-said
	if o.ExitCode == 0 && !o.TimedOut && !o.Lost {
		return nil
	}
	what := "ended with exit status " + strconv.Itoa(o.ExitCode)
	if o.TimedOut {
		what = "was ended after its time limit of " + limit.String()
	}
	return policy.Errorf(policy.CodeExternalFailed, op, "the external command %s", what).
		With("exit_code", strconv.Itoa(o.ExitCode)).Because(errors.New(output))
}

// tail reads to the end and keeps the last 4 KiB.
func tail(r io.Reader) string {
	const most = 4 << 10
	var kept []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		kept = append(kept, buf[:n]...)
		if over := len(kept) - most; over > 0 {
			kept = kept[over:]
		}
		if err != nil {
			return policy.Printable(string(bytes.TrimSpace(kept)))
		}
	}
}
