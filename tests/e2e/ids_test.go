package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// over has other content in place of a file of the host's, in this process' mount
// namespace only.
func over(t *testing.T, name, content string) {
	t.Helper()
	own := filepath.Join(t.TempDir(), filepath.Base(name))
	if err := os.WriteFile(own, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); os.IsNotExist(err) {
		t.Fatalf("%s: this machine has none", name)
	}
	if err := unix.Mount(own, name, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(name, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

const (
	subordinate = 3000000
	another     = 64998 // a group of the caller's beside its own
)

// named gives the ordinary user a name, as newuidmap(1) wants it.
func named(t *testing.T, uid int) {
	t.Helper()
	for _, name := range []string{"/etc/passwd", "/etc/group"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("yoitest:x:%d:%d::/nonexistent:/bin/sh\n", uid, uid)
		if name == "/etc/group" {
			line = fmt.Sprintf("yoitest:x:%d:\n", uid)
		}
		over(t, name, string(b)+line)
	}
}

// TestIDRange: an ordinary user's Worker gets the user's subordinate ids where the
// host gives the user some, and leaves the user's groups. Where it gives none, the
// evidence says why, and a policy may insist.
func TestIDRange(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	repo := p.Give(t, testenv.RepoSmall(t))
	named(t, rig.Ordinary)
	machine := rig.Before(t)
	y := p.Yoi(t)
	const asks = "cat /proc/self/uid_map; cat /proc/self/gid_map; id -G; touch new; git status --short"
	run := func(t *testing.T, args ...string) (runtime.Worker, string) {
		t.Helper()
		cmd := y.Cmd(append(append([]string{"run", "--json", "--repo", repo.Dir}, args...), "--", "sh", "-c", "{ "+asks+"; } >&2")...)
		cmd.SysProcAttr.Credential.Groups = []uint32{another}
		r := rig.Finish(t, cmd).Want(t, 0)
		var ev runtime.Evidence
		r.JSON(t, &ev)
		// What yoi itself says of the Worker stands behind it.
		out, _, _ := strings.Cut(r.Stderr, "yoi: ")
		return ev.Workers[0], out
	}
	alone := func(t *testing.T, out string) {
		t.Helper()
		if n := strings.Count(out, "\n"); n != 4 || !strings.Contains(out, "\n1000 65534\n") {
			t.Errorf("with one id it says\n%s", out)
		}
	}
	w, out := run(t)
	if alone(t, out); len(w.Diagnostics) > 0 || w.Protections.IDRange != 0 {
		t.Errorf("unasked it tells %+v %+v", w.Diagnostics, w.Protections)
	}
	line := fmt.Sprintf("yoitest:%d:65536\n", subordinate)
	for name, c := range map[string]struct{ subuid, subgid, why string }{
		"no range":      {"", "", "/etc/subuid has no range"},
		"no groups":     {line, "other:1:1\n", "/etc/subgid has no range"},
		"not the own":   {line, fmt.Sprintf("%d:%d:10\nyoitest:x\n", rig.Ordinary+1, subordinate), "/etc/subgid has no range"},
		"without power": {line, line, "newuidmap refuses: "},
	} {
		t.Run(name, func(t *testing.T) {
			over(t, "/etc/subuid", c.subuid)
			over(t, "/etc/subgid", c.subgid)
			if name == "without power" {
				disarm(t, "/usr/bin/newuidmap")
			}
			w, out := run(t, "--ids", "range")
			alone(t, out)
			if len(w.Diagnostics) != 1 || w.Diagnostics[0].Code != policy.CodeIDRangeUnavailable || !strings.Contains(w.Diagnostics[0].Message, c.why) || w.Protections.IDRange != 0 {
				t.Errorf("the evidence has %+v, %+v", w.Diagnostics, w.Protections)
			}
			y.Run(t, "run", "--repo", repo.Dir, "--require", "id_range", "--", "true").Refused(t, 125, policy.CodeIDRangeUnavailable)
			if out := y.Run(t, "doctor").Stdout; !regexp.MustCompile(`(?m)^id_range +ok .*` + c.why).MatchString(out) {
				t.Errorf("doctor says\n%s", out)
			}
		})
	}
	t.Run("range", func(t *testing.T) {
		over(t, "/etc/subuid", line)
		over(t, "/etc/subgid", fmt.Sprintf("yoitest:1:1\n%d:%d:65536\n", rig.Ordinary, 2*subordinate))
		maps := ""
		for _, base := range []int{subordinate, 2 * subordinate} {
			maps += fmt.Sprintf("0 %d 1000\n1000 %d 1\n1001 %d 64535\n", base, rig.Ordinary, base+1000)
		}
		want := maps + "1000\n?? new\n"
		plain := func(s string) string { return strings.Join(strings.Fields(s), " ") }
		for _, args := range [][]string{{"--ids", "range"}, {"--require", "id_range"}, {"--ids", "range", "--strategy", "copy", "--limit", "oom_score_adj=10"}} {
			if w, out := run(t, args...); plain(out) != plain(want) || len(w.Diagnostics) > 0 || w.Protections.IDRange != 65536 {
				t.Errorf("%q: %+v, %+v\n%s\nwant\n%s", args, w.Protections, w.Diagnostics, out, want)
			}
		}
		if out := y.Run(t, "doctor").Stdout; !regexp.MustCompile(`(?m)^id_range +ok +65536 ids by newuidmap`).MatchString(out) {
			t.Errorf("doctor says\n%s", out)
		}
		// Its log is the Worker's, and a session is in the same ids and no groups.
		y.OK(t, "repo", "add", "--id", "app", repo.Dir)
		var ws, live struct{ ID string }
		y.Run(t, "ws", "create", "--json", "--ids", "range", "app").Want(t, 0).JSON(t, &ws)
		y.Run(t, "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "{ "+asks+"; } >/dev/stdout; while :; do sleep 0.05; done").Want(t, 0).JSON(t, &live)
		rig.Eventually(t, "the Worker has said all", func() bool { return strings.Contains(y.OK(t, "worker", "logs", live.ID), "?? new") })
		if out := y.OK(t, "worker", "logs", live.ID); plain(out) != plain(want) {
			t.Errorf("the Worker says\n%s\nwant\n%s", out, want)
		}
		cmd := y.Cmd("worker", "exec", "-n", live.ID, "--", "sh", "-c", asks)
		cmd.SysProcAttr.Credential.Groups = []uint32{another}
		if r := rig.Finish(t, cmd).Want(t, 0); plain(r.Stdout) != plain(want) {
			t.Errorf("the session says\n%s\nwant\n%s", r.Stdout, want)
		}
		y.OK(t, "worker", "stop", live.ID)
		y.OK(t, "ws", "rm", "--discard", ws.ID)
	})
	rig.Clean(t, y.Root)
	machine.Unchanged(t)
}

// disarm takes a program's setuid bit away, in this process' mount namespace only.
func disarm(t *testing.T, program string) {
	t.Helper()
	if err := unix.Mount(program, program, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(program, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", program, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID, ""); err != nil {
		t.Fatal(err)
	}
}
