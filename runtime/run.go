package runtime

import (
	"log/slog"
	"os"

	"yoi.dev/yoi-runtime/policy"
)

// RunRequest is what `yoi run` asks for: one command, on one repository point,
// in a workspace that lives as long as the command unless Keep is set. Zero
// values are the defaults of the command line.
type RunRequest struct {
	// RuntimeRoot is the directory of the Runtime; "" is the caller's default.
	RuntimeRoot string
	// Repo is the source as the caller wrote it: a path or a file, ssh or https
	// URL. A relative path starts from Dir; Dir "" is the working directory.
	Repo     string
	Dir      string
	Selector policy.Selector
	Scope    []string
	// Branch makes HEAD a synthetic branch of that name; "" detaches HEAD.
	Branch     string
	Caches     []policy.DependencyCache
	Strategy   policy.StrategyName
	DirtyState policy.DirtyStatePolicy
	// Patch is for patch_artifact: the digest of a stored patch, or PatchContent
	// holds one that is not stored.
	Patch        policy.PatchDigest
	PatchContent []byte
	// Sandbox holds --network, --seccomp, --limit, --timeout and --env.
	Sandbox policy.SandboxPolicy
	// Secrets are the stores of handles that Sandbox.Secrets names; others are the
	// operator's.
	Secrets     map[policy.SecretHandle]CallerSecret
	RelativeCwd string
	Command     []string
	// Keep leaves the workspace for later: its cleanup policy is keep_until_asked.
	Keep bool

	// Results has the evidence say which commits the command made and what it
	// changed; that takes a look at the workspace after it has ended.
	Results bool

	// The command's streams. With a terminal on them it gets a terminal of its
	// own, whose size follows SIGWINCH. None of them is closed.
	Stdin, Stdout, Stderr *os.File
	// Signals are forwarded to the command, WINCH as a change of size. Nil
	// forwards nothing. The receiver is RunEmbedded, from its first line on: a
	// signal that comes before the command has started cancels the run.
	Signals <-chan os.Signal
	// Progress is called while slow work goes on, never concurrently. May be nil.
	Progress func(RunProgress)
	// Log receives what -v shows; nil discards it.
	Log *slog.Logger
}

// RunProgress is a step of the slow part of a run: filling the cache.
type RunProgress struct {
	// Phase is what is being done, in words: "fetching", "checking out".
	Phase string
	// Done counts objects or files; Total is 0 while it is unknown.
	Done, Total int64
	// Finished is true once, when the slow part is over.
	Finished bool
}

// RunResult is how a run ended. It is whole also when the error is nil and the
// command failed: that is the command's affair, told by ExitCode.
type RunResult struct {
	// ExitCode is the command's own, 128+n for a signal.
	ExitCode int
	// Evidence is what the command ran on, with its Worker and outcome.
	Evidence Evidence
	// Summary is one line for people, without a newline.
	Summary string
	// Warnings were found on the way; they stopped nothing.
	Warnings []policy.Diagnostic
}
