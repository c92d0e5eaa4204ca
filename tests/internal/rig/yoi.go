package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// Yoi is the command line as one user has it.
type Yoi struct {
	Program string
	// Root is passed as --runtime-root, unless it is empty.
	Root string
	UID  int
	Dir  string // the working directory
	Home string
	Env  []string // added to a small environment
	// Subcommands that talk to a daemon are given this --socket.
	Socket string
}

// Canary is in the caller's environment and must not be in a Worker's.
const Canary = "canary-of-the-caller"

// Result is how a command ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Code           int
}

// patience ends a command that hangs, so that the suite says which.
const patience = 3 * time.Minute

// Cmd is a command that has not been started. The first argument is the
// subcommand.
func (y Yoi) Cmd(args ...string) *exec.Cmd {
	full := args
	if len(args) > 0 {
		var flags []string
		if y.Root != "" {
			flags = append(flags, "--runtime-root", y.Root)
		}
		if y.Socket != "" {
			flags = append(flags, "--socket", y.Socket)
		}
		// Before the first argument that is not a subcommand's name: what comes
		// behind "--" is the Worker's.
		n := subcommandLength(args)
		full = append(append(append([]string{}, args[:n]...), flags...), args[n:]...)
	}
	cmd := exec.Command(y.Program, full...)
	cmd.Dir = y.Dir
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + y.Home, "LANG=C.UTF-8", "SECRET_TOKEN=" + Canary,
	}, y.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if y.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(y.UID), Gid: uint32(y.UID)}
	}
	return cmd
}

func subcommandLength(args []string) int {
	switch args[0] {
	case "repo", "patch", "ws", "worker", "ledger", "bundle":
		return min(2, len(args))
	}
	return 1
}

// Run runs a command to its end.
func (y Yoi) Run(t testing.TB, args ...string) Result {
	t.Helper()
	return y.Input(t, "", args...)
}

// Input is Run with a standard input.
func (y Yoi) Input(t testing.TB, stdin string, args ...string) Result {
	t.Helper()
	cmd := y.Cmd(args...)
	cmd.Stdin = strings.NewReader(stdin)
	return Finish(t, cmd)
}

// Finish runs cmd and collects its output.
func Finish(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Signal(syscall.SIGABRT) }) // Go prints its stacks
	defer timer.Stop()
	err := cmd.Wait()
	r := Result{Args: cmd.Args[1:], Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	return r
}

// OK runs a command that must exit with 0, and returns its standard output.
func (y Yoi) OK(t testing.TB, args ...string) string {
	t.Helper()
	r := y.Run(t, args...)
	r.Want(t, 0)
	return r.Stdout
}

// Want checks the exit code.
func (r Result) Want(t testing.TB, code int) Result {
	t.Helper()
	if r.Code != code {
		t.Fatalf("yoi %s\nexit %d, want %d\nstdout: %s\nstderr: %s", strings.Join(r.Args, " "), r.Code, code, brief(r.Stdout), brief(r.Stderr))
	}
	return r
}

// Refused checks that a command ended with exit, the diagnostic code, a hint,
// and without a host path of the Runtime root on its output.
func (r Result) Refused(t testing.TB, exit int, code policy.Code) Result {
	t.Helper()
	r.Want(t, exit)
	if got := r.Diagnostic(); got != code {
		t.Errorf("yoi %s\ncode %q, want %q\nstderr: %s", strings.Join(r.Args, " "), got, code, brief(r.Stderr))
	}
	return r
}

var codeLine = regexp.MustCompile(`(?m)^(?:yoi: )?code: ([a-z0-9_]+)\s*$|"code": ?"([a-z0-9_]+)"`)

// Diagnostic is the code that the command reported, "" without one.
func (r Result) Diagnostic() policy.Code {
	for _, out := range []string{r.Stderr, r.Stdout} {
		if m := codeLine.FindStringSubmatch(out); m != nil {
			return policy.Code(m[1] + m[2])
		}
	}
	return ""
}

// JSON decodes the standard output.
func (r Result) JSON(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.Stdout), v); err != nil {
		t.Fatalf("yoi %s printed no JSON: %v\n%s", strings.Join(r.Args, " "), err, brief(r.Stdout))
	}
}

func brief(s string) string {
	if len(s) > 4000 {
		return s[:2000] + "\n…\n" + s[len(s)-2000:]
	}
	return s
}
