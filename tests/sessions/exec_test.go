package sessions

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"syscall"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestExec(t *testing.T) {
	eachHost(t, func(t *testing.T, h *host) {
		wk := h.spawn(t, []string{"--cwd", "src", "--env", "GIVEN=worker", "--limit", "open_files=77"}, waits)

		r := h.Input(t, "in", "worker", "exec", wk, "--env", "MORE=1", "--", "sh", "-c", "cat; pwd; echo $GIVEN $MORE; ulimit -n; echo err >&2; exit 6").Want(t, 6)
		if r.Stdout != "in/workspace/app/src\nworker 1\n77\n" || r.Stderr != "err\n" {
			t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
		}
		if got := h.OK(t, "worker", "exec", wk, "--cwd", ".", "--", "pwd"); got != "/workspace/app\n" {
			t.Errorf("it starts in %q", got)
		}
		h.Run(t, "worker", "exec", wk, "--", "sh", "-c", "kill -9 $$").Want(t, 137)
		h.Run(t, "worker", "exec", wk, "--", "no-such-program").Refused(t, 127, policy.CodeCommandNotFound)
		h.Run(t, "worker", "exec", wk, "--", "/etc/passwd").Refused(t, 126, policy.CodeCommandNotExecutable)
		h.Run(t, "worker", "exec", wk, "--cwd", "../..", "--", "true").Refused(t, 125, policy.CodeCwdEscape)
		h.Run(t, "worker", "exec", "wk-0000000000000000", "--", "true").Refused(t, 125, policy.CodeWorkerUnknown)

		// What is written to a session that reads nothing does not keep it from ending.
		big := strings.Repeat("0123456789abcde\n", 1<<16)
		h.Input(t, big, "worker", "exec", wk, "--", "true").Want(t, 0)
		got := h.Input(t, big, "worker", "exec", wk, "--", "cat").Want(t, 0).Stdout
		if got != big {
			t.Errorf("a MiB came back with %d bytes, digest %x", len(got), sha256.Sum256([]byte(got)))
		}
		// A process that it leaves behind does not hold the caller.
		if got := h.OK(t, "worker", "exec", wk, "--", "sh", "-c", "sleep 1000 & echo done"); got != "done\n" {
			t.Errorf("%q", got)
		}

		all := h.sessions(t, wk)
		if len(all) != 6 {
			t.Fatalf("%d sessions are recorded: %+v", len(all), all)
		}
		first, third := all[0], all[2]
		if first.UID != uint32(h.UID) || first.Command[0] != "sh" || first.ExitCode != 6 || first.End != "exited" || first.EndedAt.IsZero() || first.Kind != "exec" {
			t.Errorf("the record is %+v", first)
		}
		if third.Signal != "SIGKILL" || third.End != "signaled" {
			t.Errorf("the record is %+v", third)
		}
		if log := h.OK(t, "events", "--owner", wk); strings.Count(log, "session.started") != 8 || strings.Count(log, "session.ended") != 8 {
			t.Errorf("the timeline says\n%s", log)
		}
		h.OK(t, "worker", "stop", "--grace", "1s", wk)
		h.Run(t, "worker", "exec", wk, "--", "true").Refused(t, 125, policy.CodeWorkerNotRunning)
	})
}

// TestExecAudit: under the profile audit a session's refusals are its own, and it is
// refused what the Worker is.
func TestExecAudit(t *testing.T) {
	eachHost(t, func(t *testing.T, h *host) {
		const tries = "unshare -U true; unshare -U true; exit 3"
		plain := h.spawn(t, nil, waits)
		if r := h.Run(t, "worker", "exec", plain, "--", "sh", "-c", tries).Want(t, 3); strings.Contains(r.Stderr, "yoi: refused") {
			t.Errorf("unasked it tells %q", r.Stderr)
		}
		h.OK(t, "worker", "stop", "--grace", "1s", plain)
		var ws struct{ ID string }
		h.Run(t, "ws", "create", "--json", "--seccomp", "audit", "app").Want(t, 0).JSON(t, &ws)
		audited := *h
		audited.ws = ws.ID
		wk := audited.spawn(t, nil, waits)
		const line = "yoi: refused: unshare, by unshare: EPERM, 2 times\n"
		if r := h.Run(t, "worker", "exec", wk, "--", "sh", "-c", tries).Want(t, 3); !strings.Contains(r.Stderr, line) {
			t.Errorf("told is %q", r.Stderr)
		}
		// On a terminal too; and what it leaves behind is answered as before.
		if r := h.Run(t, "worker", "exec", "-t", wk, "--", "sh", "-c", "(sleep 0.2; unshare -U true 2>/scratch/later; echo $? >>/scratch/later) & "+tries).Want(t, 3); !strings.Contains(r.Stderr, line) {
			t.Errorf("on a terminal told is %q", r.Stderr)
		}
		h.Run(t, "worker", "exec", wk, "--", "no-such-program").Refused(t, 127, policy.CodeCommandNotFound)
		if all := h.sessions(t, wk); len(all) != 2 || len(all[0].Denied) == 0 || all[0].Denied[len(all[0].Denied)-1].Count != 2 {
			t.Errorf("recorded is %+v", all)
		}
		h.OK(t, "worker", "stop", "--grace", "1s", wk)
		if out := h.OK(t, "worker", "show", "--json", wk); strings.Contains(out, `"outcome"`) && strings.Contains(strings.Split(out, `"sessions"`)[0], `"denied"`) {
			t.Errorf("the Worker is told to have been refused what its session was: %s", out)
		}
		h.OK(t, "ws", "rm", "--discard", ws.ID)
	})
}

// TestExecEnds: with the Worker, by the kernel, and with its caller, however that goes.
func TestExecEnds(t *testing.T) {
	eachHost(t, func(t *testing.T, h *host) {
		wk := h.spawn(t, nil, waits)
		for _, c := range []struct {
			sig  syscall.Signal
			code int
		}{{syscall.SIGTERM, 143}, {syscall.SIGKILL, -1}} {
			marker := policy.NewID("marker-")
			cmd := h.exec(wk, "--", "sh", "-c", "echo here; sleep 1000; : "+marker)
			rig.Begin(t, cmd)
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the code says how
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("after %v: exit %d", c.sig, got)
			}
			rig.Eventually(t, "the session's process is gone", func() bool { return !rig.Marked(t, marker) })
		}
		cmd := h.exec(wk, "--", "sh", "-c", "echo here; sleep 1000")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		rig.Begin(t, cmd)
		h.OK(t, "worker", "stop", wk)
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 137 || !strings.Contains(stderr.String(), "the worker has ended") {
			t.Errorf("exit %d, %s", got, &stderr)
		}
		all := h.sessions(t, wk)
		if last := all[len(all)-1]; last.End != "worker_ended" {
			t.Errorf("the record is %+v", last)
		}
	})
}
