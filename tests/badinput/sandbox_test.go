package badinput

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// filterSource becomes a program under a filter that answers one call with an
// errno, as an old kernel or a container's filter would.
const filterSource = `
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int c, char **v) {
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(v[1]), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | atoi(v[2])),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof f / sizeof *f, f };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p)) return 99;
	execv(v[3], v + 3);
	return 98;
}
`

func filterProgram(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "filtered")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(dir, "filtered.c")
	if err := os.WriteFile(src, []byte(filterSource), 0o600); err != nil {
		t.Fatal(err)
	}
	rig.Command(t, "gcc", "-o", filepath.Join(dir, "filtered"), src)
	return filepath.Join(dir, "filtered")
}

// TestHiddenCalls: a kernel that lacks what a launch needs, or a filter around yoi
// that hides it. It is a diagnostic, nothing is left, and no Worker runs in less of
// a sandbox.
func TestHiddenCalls(t *testing.T) {
	testenv.Root(t)
	filtered := filterProgram(t)
	repo := testenv.RepoSmall(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		src := p.Give(t, repo)
		y := warmed(t, p, src.Dir)
		for _, call := range []struct {
			name  string
			nr    int
			eperm policy.Code // "" where the C library itself needs the call
		}{
			{"clone3", unix.SYS_CLONE3, ""},
			{"mount_setattr", unix.SYS_MOUNT_SETATTR, policy.CodeMountFailed},
			{"openat2", unix.SYS_OPENAT2, policy.CodeKernelFeatureMissing},
			{"pidfd_open", unix.SYS_PIDFD_OPEN, policy.CodeLaunchFailed},
			{"fsopen", unix.SYS_FSOPEN, policy.CodeMountFailed},
			{"open_tree", unix.SYS_OPEN_TREE, policy.CodeMountFailed},
			{"move_mount", unix.SYS_MOVE_MOUNT, policy.CodeMountFailed},
			{"close_range", unix.SYS_CLOSE_RANGE, policy.CodeLaunchFailed},
			{"pivot_root", unix.SYS_PIVOT_ROOT, policy.CodeMountFailed},
		} {
			for errno, want := range map[unix.Errno]policy.Code{unix.ENOSYS: policy.CodeKernelFeatureMissing, unix.EPERM: call.eperm} {
				if want == "" {
					continue
				}
				t.Run(fmt.Sprintf("uid %d/%s/%v", uid, call.name, errno), func(t *testing.T) {
					r := rig.Finish(t, around(y.Cmd("run", "--repo", src.Dir, "--", "sh", "-c", "echo ran"), filtered, call.nr, errno))
					if r.Code != 125 || strings.Contains(r.Stdout, "ran") {
						t.Fatalf("exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
					}
					// By which of its two uses it is missed first is the launch's matter.
					if got := r.Diagnostic(); got != want && (errno != unix.EPERM || got != policy.CodeNamespacesUnavailable) {
						t.Errorf("%s, want %s\n%s", got, want, r.Stderr)
					}
					if errno == unix.ENOSYS && !strings.Contains(r.Stderr, call.name) {
						t.Errorf("it is not named: %s", r.Stderr)
					}
					rig.Clean(t, y.Root)
				})
			}
		}
		for _, call := range []int{unix.SYS_LANDLOCK_CREATE_RULESET} {
			for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM, unix.EOPNOTSUPP} {
				t.Run(fmt.Sprintf("uid %d/landlock/%v", uid, errno), func(t *testing.T) {
					var ev runtime.Evidence
					r := rig.Finish(t, around(y.Cmd("run", "--json", "--repo", src.Dir, "--", "true"), filtered, call, errno))
					r.Want(t, 0).JSON(t, &ev)
					if p := ev.Workers[0].Protections; p == nil || p.LandlockABI != 0 {
						t.Errorf("evidence says %+v", p)
					}
					rig.Finish(t, around(y.Cmd("run", "--require", "landlock", "--repo", src.Dir, "--", "true"), filtered, call, errno)).Refused(t, 125, policy.CodeKernelFeatureMissing)
					rig.Clean(t, y.Root)
				})
			}
		}
	}
}

// around puts cmd under the filter.
func around(cmd *exec.Cmd, filtered string, nr int, errno unix.Errno) *exec.Cmd {
	cmd.Args = append([]string{filtered, fmt.Sprint(nr), fmt.Sprint(int(errno))}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = filtered
	return cmd
}

// TestReadOnlyControlGroups: limits that cannot be kept, because the host's control
// groups cannot be written, are told, or refused where they are required.
func TestReadOnlyControlGroups(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	run := func(args ...string) rig.Result {
		cmd := y.Cmd(append([]string{"run", "--repo", repo.Dir}, args...)...)
		// Every mount of a control group read-only, in a mount namespace of its own.
		script := `for m in $(findmnt -rno TARGET -t cgroup,cgroup2); do mount -o remount,bind,ro "$m"; done; exec "$@"`
		cmd.Args = append([]string{"unshare", "--mount", "sh", "-ec", script, "sh", cmd.Path}, cmd.Args[1:]...)
		path, err := exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path = path
		return rig.Finish(t, cmd)
	}
	run("--require", "limits", "--limit", "tasks=50", "--", "true").Refused(t, 125, policy.CodeLimitsUnavailable)
	r := run("--limit", "tasks=50", "--", "true").Want(t, 0)
	if !strings.Contains(r.Stderr, string(policy.CodeLimitsUnavailable)) {
		t.Errorf("nothing is said: %s", r.Stderr)
	}
	rig.Clean(t, y.Root)
}

// TestNoRangeLeft: one Worker has the only range of host ids.
func TestNoRangeLeft(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	config := filepath.Join(y.Root, "config.toml")
	if err := os.WriteFile(config, []byte("[id_pool]\nbase = 1500053504\ncount = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", "echo up; read end; :")
	in := rig.Stdin(t, first)
	rig.Begin(t, first)
	refused := y.Run(t, "run", "--repo", repo.Dir, "--", "true")
	in.Close()
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
	refused.Refused(t, 125, policy.CodeIDRangeExhausted)
	y.OK(t, "run", "--repo", repo.Dir, "--", "true") // the range is free again
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	rig.Clean(t, y.Root)
}

// TestSandboxPolicies that contradict themselves, ask for what there is not, or
// are far too long.
func TestSandboxPolicies(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		toml string
		code policy.Code
	}{
		"unknown call":          {`seccomp_allow = ["teleport"]`, policy.CodeSeccompInvalid},
		"a call of i386":        {`seccomp_allow = ["socketcall"]`, policy.CodeSeccompInvalid},
		"no call's name":        {`seccomp_allow = ["ptrace\u0000x"]`, policy.CodeSeccompInvalid},
		"refused by name":       {`seccomp_allow = ["mount"]`, policy.CodeSeccompInvalid},
		"limited by argument":   {`seccomp_allow = ["clone"]`, policy.CodeSeccompInvalid},
		"many calls":            {"seccomp_allow = [" + many(65, `"x%d",`) + "]", policy.CodePolicyInvalid},
		"required twice":        {`require = ["landlock", "landlock"]`, policy.CodePolicyInvalid},
		"required unknown":      {`require = ["magic"]`, policy.CodePolicyInvalid},
		"many required":         {"require = [" + many(100000, `"r%d",`) + "]", policy.CodePolicyInvalid},
		"rules without a list":  {"[network]\nmode = \"none\"\nrules = [\"a.example:443\"]", policy.CodePolicyInvalid},
		"more high than max":    {"[limits]\nmemory_max = \"64M\"\nmemory_high = \"128M\"", policy.CodeLimitsInvalid},
		"swap without memory":   {"[limits]\nswap_max = \"64M\"", policy.CodeLimitsInvalid},
		"no room for a process": {"[limits]\ntasks = 1", policy.CodeLimitsInvalid},
		"negative":              {"[limits]\nnice = -5", policy.CodeLimitsInvalid},
		"a mount":               {"mounts = [\"/proc:/proc\"]", policy.CodePolicyInvalid},
		"unknown root":          {`root = "/"`, policy.CodePolicyInvalid},
		"many variables":        {"[env]\n" + many(1025, "V%d = \"x\"\n"), policy.CodeEnvironmentInvalid},
		"a huge file":           {"# " + strings.Repeat("x", 64<<20), policy.CodePolicyInvalid},
		"deep nesting":          {"x = " + strings.Repeat("[", 100000), policy.CodePolicyInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "p.toml")
			if err := os.WriteFile(file, []byte(c.toml), 0o644); err != nil {
				t.Fatal(err)
			}
			refused(t, y, 125, c.code, "run", "--repo", repo.Dir, "--policy", file, "--", "true")
		})
	}
}
