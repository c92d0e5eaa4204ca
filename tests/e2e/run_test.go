package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// each runs body as root and as an ordinary user, with a small repository, and
// checks afterwards that nothing is left.
func each(t *testing.T, body func(t *testing.T, y rig.Yoi, repo testenv.Repo)) {
	t.Helper()
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run("uid "+strconv.Itoa(uid), func(t *testing.T) {
			p := rig.NewPlace(t, "disk", uid)
			repo := p.Give(t, small)
			machine := rig.Before(t)
			y := p.Yoi(t)
			body(t, y, repo)
			rig.Clean(t, y.Root)
			machine.Unchanged(t)
		})
	}
}

func TestEveryStrategyEverywhere(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo := p.Give(t, small)
		y := p.Yoi(t)
		before := rig.Contents(t, repo.Dir)
		ways := p.Ways(t, y, repo)
		for _, w := range append(ways, ways[0].By(policy.StrategyAuto)) {
			s := w.Strategy
			r := y.Run(t, w.Run("--json", "--", "sh", "-c", "git rev-parse HEAD >&2; echo x >new; rm README.md; find . /scratch -printf '%D\\n' | sort -u | wc -l >&2")...).Want(t, 0)
			var ev runtime.Evidence
			r.JSON(t, &ev)
			if !strings.Contains(r.Stderr, repo.Commit) || len(ev.Points) != 1 || ev.Points[0].CommitID != repo.Commit || ev.Points[0].TreeID != repo.Tree {
				t.Errorf("%s: the evidence is %+v, and the Worker says %s", s, ev.Points, r.Stderr)
			}
			// The workspace and its scratch are a device each, which `tar --one-file-system` asks.
			if !strings.HasSuffix(r.Stderr, "\n2\n") {
				t.Errorf("%s: the Worker sees more devices than mounts: %s", s, r.Stderr)
			}
			if s != policy.StrategyAuto && ev.Strategy != s || ev.StrategyReason == "" || ev.SeccompDigest == "" || len(ev.Workers) != 1 || ev.Workers[0].Outcome == nil {
				t.Errorf("%s: the evidence is %+v", s, ev)
			}
			rig.Clean(t, y.Root)
		}
		for _, d := range rig.Difference(before, rig.Contents(t, repo.Dir)) {
			t.Errorf("the source changed: %s", d)
		}
	})
}

func TestExitCodes(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		for command, code := range map[string]int{
			"exit 0": 0, "exit 1": 1, "exit 42": 42, "exit 125": 125, "exit 255": 255,
			"kill -TERM $$": 143, "kill -KILL $$": 137, "kill -SEGV $$": 139,
		} {
			y.Run(t, "run", "--repo", repo.Dir, "--", "sh", "-c", command).Want(t, code)
		}
		y.Run(t, "run", "--repo", repo.Dir).Want(t, 125)
		y.Run(t, "run", "--no-such-flag", "--", "true").Want(t, 125)
	})
}

// TestStreams: the command's and nothing else's; nothing of ours on stdout.
func TestStreams(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		r := y.Input(t, "to the command\n", "run", "--repo", repo.Dir, "--", "sh", "-c", "cat; echo problem >&2")
		if r.Code != 0 || r.Stdout != "to the command\n" || r.Stderr != "problem\n" {
			t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Stdout, r.Stderr)
		}
		r = y.Run(t, "run", "-v", "--repo", repo.Dir, "--", "true").Want(t, 0)
		if r.Stdout != "" || strings.Count(r.Stderr, "yoi: small@"+repo.Commit[:12]) != 1 {
			t.Errorf("-v prints %q and %q", r.Stdout, r.Stderr)
		}
		// A megabyte through both, byte for byte.
		big := strings.Repeat("0123456789abcdef", 1<<16)
		if r := y.Input(t, big, "run", "--repo", repo.Dir, "--", "cat"); r.Stdout != big {
			t.Errorf("%d bytes came back of %d", len(r.Stdout), len(big))
		}
		// A reader that goes away ends the writer, as in any pipeline.
		cmd := y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", "while echo y; do :; done 2>/dev/null; exit 9")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		out.Close()
		_ = cmd.Wait() // the code is looked at
		if code := cmd.ProcessState.ExitCode(); code != 141 && code != 9 {
			t.Errorf("exit %d after SIGPIPE", code)
		}
	})
}

// TestSurroundings is what a command finds around it.
func TestSurroundings(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.Env = append(y.Env, "PASSED=through", "LD_PRELOAD=/evil.so")
		out := y.OK(t, "run", "--repo", repo.Dir, "--env", "A=b c", "--env", "PASSED", "--cwd", "src", "--", "sh", "-c", `
			pwd; id -u; id -g; id -un; hostname; echo $HOME $A $PASSED; env | grep -c -e SECRET -e LD_PRELOAD
			ls -A /workspace /scratch $HOME /tmp; touch /scratch/f /tmp/f $HOME/f ../f; umask; ulimit -c
			ip -o link 2>/dev/null | grep -vc LOOPBACK; cat /proc/1/comm; ls /`)
		want := "/workspace/small/src\n1000\n1000\nworker\nworker\n/home/worker b c through\n0\n" +
			"/home/worker:\n\n/scratch:\n\n/tmp:\n\n/workspace:\nsmall\n0022\n0\n0\n"
		if !strings.HasPrefix(out, want) {
			t.Errorf("the command finds\n%s\nwant\n%s", out, want)
		}
		if strings.Contains(out, "root\n") || strings.Contains(out, "srv") {
			t.Errorf("the root holds more than the policy names:\n%s", out)
		}
	})
}

// TestBackgroundProcessesEnd: what a command leaves running dies with it.
func TestBackgroundProcessesEnd(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.Run(t, "run", "--repo", repo.Dir, "--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & (trap '' TERM HUP; sleep 1000 >/dev/null 2>&1) & exit 6").Want(t, 6)
	})
}

func TestTimeout(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		r := y.Run(t, "run", "--json", "--repo", repo.Dir, "--timeout", "300ms", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done").Want(t, 137)
		var ev runtime.Evidence
		r.JSON(t, &ev)
		if len(ev.Workers) != 1 || ev.Workers[0].Outcome == nil || !ev.Workers[0].Outcome.TimedOut {
			t.Errorf("the evidence does not tell the timeout: %+v", ev.Workers)
		}
	})
}

func TestLimits(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		out := y.OK(t, "run", "--repo", repo.Dir, "--limit", "open_files=64", "--limit", "file_size=1M", "--limit", "nice=19", "--", "sh", "-c",
			"ulimit -n; nice; head -c 2000000 /dev/zero >big 2>/dev/null; stat -c %s big")
		if out != "64\n19\n1048576\n" {
			t.Errorf("the limits are\n%s", out)
		}
	})
}

// TestGroupLimits: what bounds all of a Worker's processes together, and how it
// shows. An ordinary user has no control groups of its own here.
func TestGroupLimits(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		run := func(want int, args ...string) runtime.Worker {
			t.Helper()
			var ev runtime.Evidence
			y.Run(t, append([]string{"run", "--json", "--repo", repo.Dir}, args...)...).Want(t, want).JSON(t, &ev)
			return ev.Workers[0]
		}
		if y.UID != 0 {
			w := run(0, "--limit", "memory_max=64M", "--", "true")
			if len(w.Diagnostics) != 1 || w.Diagnostics[0].Code != policy.CodeLimitsUnavailable || w.Protections.CgroupVersion != 0 {
				t.Errorf("the limit was silently not kept: %+v", w)
			}
			// Who does not ask for evidence is told too.
			r := y.Run(t, "run", "--limit", "memory_max=64M", "--repo", repo.Dir, "--", "true").Want(t, 0)
			if !strings.Contains(r.Stderr, "(limits_unavailable)") {
				t.Errorf("nothing is said of the limit that is not kept: %q", r.Stderr)
			}
			y.Run(t, "run", "--require", "limits", "--limit", "memory_max=64M", "--repo", repo.Dir, "--", "true").Want(t, 125)
			return
		}
		const hungry = "x = bytearray(300 << 20); print(len(x))"
		w := run(137, "--require", "limits", "--limit", "memory_max=64M", "--", "python3", "-c", hungry)
		if w.Outcome == nil || !w.Outcome.OOMKilled || w.Outcome.Lost || w.Protections.CgroupVersion == 0 {
			t.Errorf("not told as an out-of-memory kill: %+v %+v", w.Outcome, w.Protections)
		}
		// A child that is killed is told too, and the rest goes on.
		w = run(7, "--limit", "memory_max=64M", "--", "sh", "-c", "python3 -c '"+hungry+"'; exit 7")
		if !w.Outcome.OOMKilled || w.Outcome.ExitCode != 7 {
			t.Errorf("a child's out-of-memory kill: %+v", w.Outcome)
		}
		w = run(0, "--limit", "tasks=16", "--limit", "cpu_percent=50", "--limit", "cpu_weight=50", "--", "python3", "-c", `
import os, sys, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        n += 1
except OSError: pass
sys.exit(0 if 4 < n < 16 else 1)`)
		if w.Outcome.OOMKilled || !w.Outcome.TasksDenied {
			t.Errorf("not told as a fork bomb: %+v", w.Outcome)
		}
		if w = run(0, "--limit", "tasks=16", "--", "true"); w.Outcome.TasksDenied {
			t.Errorf("%+v", w.Outcome)
		}
		y.Run(t, "run", "--limit", "memory_max=1", "--repo", repo.Dir, "--", "true").Want(t, 125)
	})
}

// TestAudit: under the profile audit each refusal is told, by call, program and
// answer; it refuses what default refuses.
func TestAudit(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		var ev runtime.Evidence
		r := y.Run(t, "run", "--json", "--repo", repo.Dir, "--seccomp", "audit", "--", "sh", "-c",
			`unshare -U true; unshare -U true; python3 -c 'import ctypes; ctypes.CDLL(None).syscall(9000)'; (sleep 60 &) ; exit 6`)
		r.Want(t, 6).JSON(t, &ev)
		want := map[registry.DeniedCall]bool{
			{Call: "unshare", Answer: "EPERM", Program: "unshare", Count: 2}: false,
			{Call: "9000", Answer: "ENOSYS", Program: "python3", Count: 1}:   false,
		}
		for _, d := range ev.Workers[0].Outcome.Denied {
			if _, ok := want[d]; ok {
				want[d] = true
			} else if d.Call != "clone3" { // the C library's first try
				t.Errorf("told: %+v", d)
			}
		}
		for d, told := range want {
			if !told {
				t.Errorf("not told: %+v of %+v", d, ev.Workers[0].Outcome.Denied)
			}
		}
		if !strings.Contains(r.Stderr, "yoi: refused: unshare, by unshare: EPERM, 2 times\n") {
			t.Errorf("stderr: %s", r.Stderr)
		}
	})
}

// TestLandlock: the default sandbox has it where the kernel has it, and evidence
// says so. Signals to PID 1 are what a Worker can tell it by.
func TestLandlock(t *testing.T) {
	abi := testenv.NeedLandlock(t, 6)
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		var ev runtime.Evidence
		r := y.Run(t, "run", "--json", "--require", "landlock", "--repo", repo.Dir, "--", "sh", "-c", "kill -0 1 2>/dev/null || echo held").Want(t, 0)
		r.JSON(t, &ev)
		if len(ev.Workers) != 1 || ev.Workers[0].Protections == nil || ev.Workers[0].Protections.LandlockABI != abi || !strings.Contains(r.Stderr, "held") {
			t.Errorf("not held by Landlock: %+v, %q", ev.Workers, r.Stderr)
		}
		// A sandbox inside ours mounts: bubblewrap's, say.
		y.OK(t, "run", "--seccomp", "nested", "--repo", repo.Dir, "--", "unshare", "-rm", "mount", "-t", "tmpfs", "none", "/tmp")
		y.Run(t, "run", "--require", "magic", "--repo", repo.Dir, "--", "true").Want(t, 125)
	})
}

// TestKeep: the workspace stays, can be listed, shown and removed.
func TestKeep(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.OK(t, "run", "--keep", "--branch", "agent/one", "--repo", repo.Dir, "--", "sh", "-c", "echo x >new && git add new && git commit -qm work")
		var list runtime.WorkspaceList
		y.Run(t, "ws", "list", "--json").Want(t, 0).JSON(t, &list)
		if len(list.Items) != 1 {
			t.Fatalf("%d workspaces are kept", len(list.Items))
		}
		id := string(list.Items[0].ID)
		if out := y.OK(t, "ws", "list"); !strings.Contains(out, id) || !strings.Contains(out, "small") {
			t.Errorf("the table is\n%s", out)
		}
		y.OK(t, "ws", "show", id)
		y.OK(t, "gc") // does not touch it
		y.Run(t, "ws", "rm", id).Refused(t, 1, policy.CodeUncollectedWork)
		y.OK(t, "ws", "rm", "--discard", id)
		y.OK(t, "ws", "rm", "--discard", id)
		y.Run(t, "ws", "rm", "ws-nothing").Refused(t, 1, policy.CodeAllocationUnknown)
	})
}

// TestWarnsOfLostWork: without --keep a commit is thrown away, but not in silence.
func TestWarnsOfLostWork(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		r := y.Run(t, "run", "--repo", repo.Dir, "--", "sh", "-c", "git commit -q --allow-empty -m work").Want(t, 0)
		if !strings.Contains(r.Stderr, string(policy.CodeUncollectedWork)) {
			t.Errorf("stderr is %q", r.Stderr)
		}
		if r := y.Run(t, "run", "--repo", repo.Dir, "--", "git", "status").Want(t, 0); r.Stderr != "" {
			t.Errorf("without work: %q", r.Stderr)
		}
	})
}

// TestDefaults: no flag at all, inside the repository.
func TestDefaults(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.Root, y.Dir = "", repo.Dir
		y.OK(t, "run", "--", "git", "log", "-1")
		root := filepath.Join(y.Home, ".yoi/runtimes/default")
		st, err := os.Stat(root)
		if err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("the default Runtime root: %v, %v", st, err)
		}
		rig.Clean(t, root)
	})
}

// TestDirectLegacyMount is the source itself, dirty as it may be, and changed by
// the command.
func TestDirectLegacyMount(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.OK(t, "run", "--repo", repo.Dir, "--dirty", "direct_legacy_mount", "--", "sh", "-c", "echo changed >by-the-command; git status --porcelain")
		if b, err := os.ReadFile(filepath.Join(repo.Dir, "by-the-command")); err != nil || string(b) != "changed\n" {
			t.Errorf("the source holds %q, %v", b, err)
		}
	})
}

func TestDoctorAndLedger(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.OK(t, "run", "--repo", repo.Dir, "--", "true")
		y.Env = append(y.Env, "YOI_LAYERS="+rig.Program(t, "yoi-layers"), "YOI_EGRESS="+rig.Program(t, "yoi-egress")) // beside it as installed
		for _, args := range [][]string{{"doctor"}, {"ledger", "show"}, {"ledger", "verify"}, {"ledger", "replay"}, {"gc"}, {"repo", "list"}, {"ws", "list"}, {"worker", "list"}} {
			code := 0
			if args[0] == "doctor" && y.UID != 0 {
				code = 3 // an ordinary user has no control groups here, and nothing else is amiss
				if out := y.Run(t, args...).Stdout; strings.Count(out, "degraded") != 1 || !regexp.MustCompile(`(?m)^cgroups +degraded`).MatchString(out) {
					t.Errorf("more is amiss:\n%s", out)
				}
			}
			if out := y.Run(t, args...).Want(t, code).Stdout; strings.TrimSpace(out) == "" {
				t.Errorf("%q prints nothing", args)
			}
			if out := y.Run(t, append(args, "--json")...).Want(t, code).Stdout; !strings.ContainsAny(out, "{[") {
				t.Errorf("%q --json prints %q", args, out)
			}
			help := y.OK(t, append(args, "--help")...)
			if !strings.Contains(strings.ToLower(help), "example") {
				t.Errorf("the help of %q has no example:\n%s", args, help)
			}
		}
	})
}

// TestBrokenLedger: a chain that was tampered with stops cleanup, is located,
// and is not repaired behind the operator's back.
func TestBrokenLedger(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := p.Give(t, testenv.RepoSmall(t))
	y := p.Yoi(t)
	y.OK(t, "run", "--keep", "--repo", repo.Dir, "--", "true")
	y.OK(t, "ledger", "verify")
	segments, err := filepath.Glob(filepath.Join(y.Root, "ledger/*/*/*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatal("no segment", err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(b), "execution-workspaces/ws-")
	if i < 0 {
		t.Fatal("the ledger names no workspace")
	}
	b[i+len("execution-workspaces/ws-")] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	r := y.Run(t, "ledger", "verify")
	if r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "line") {
		t.Errorf("verify: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	y.Run(t, "gc").Refused(t, 1, policy.CodeLedgerBroken)
}
