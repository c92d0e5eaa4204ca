package vm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
	"yoi.dev/yoi-runtime/tests/internal/vm"
)

// testPowerLoss takes the machine's power away twice, once behind a last answer and once while much is
// going on, and looks each time at what has become of it. What was not flushed is lost
// as a whole first, then in part, in an order that no program has chosen.
func testPowerLoss(t *testing.T, m *vm.Machine) {
	m.OK("sync") // the installation is not what is tested
	for i, part := range []float64{0, 0.5} {
		t.Run(fmt.Sprintf("power_%d", i+1), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			losePower(t, m.For(t), i+1, func() bool { return r.Float64() < part })
		})
		if t.Failed() {
			return // the next round would only find the same
		}
	}
}

// churn makes workspaces with Workers and removes some, and notes what was
// acknowledged, of which nothing may be lost.
const churn = `for n in $(seq 1000); do
	ws=$(yoi ws create app --cleanup keep_until_asked | awk '$1 == "id" { print $2 }') && echo made $ws >>/tmp/acked || exit
	yoi worker spawn $ws -- sh -c 'echo $$ >stamp; exec sleep 1000' >/dev/null || exit
	[ $((n % 3)) = 0 ] || continue
	yoi ws rm --stop --discard $ws >/dev/null && echo gone $ws >>/tmp/acked || exit
done`

func background(m *vm.Machine, args ...string) {
	m.OK(append([]string{"systemd-run", "--quiet", "--collect", "--uid=agent", "--setenv=YOI_SOCKET=/run/yoi/runtimed.sock", "--"}, args...)...)
}

func losePower(t *testing.T, m *vm.Machine, round int, survives func() bool) {
	name := fmt.Sprintf("round-%d", round)
	// First nothing reaches the disk that nobody waits for, neither by the kernel nor by what
	// others wait for. Then much is going on and everything is written early, so that there
	// is much which the disk has not flushed.
	writeback := "0"
	if round > 1 {
		writeback = "10"
	}
	m.OK("sh", "-c", "echo $1 >/proc/sys/vm/dirty_writeback_centisecs; echo 1 >/proc/sys/vm/dirty_expire_centisecs", "sh", writeback)
	kept := workspace(t, m)
	work := rig.Answer[worker](yoi(m, "worker", "spawn", "--json", kept, "--", "sh", "-c",
		`echo more >>README && git -c user.name=a -c user.email=a@example.com commit -qam "$1"`, "sh", name)).ID
	if o := ended(t, m, work); o != (outcome{}) {
		t.Fatalf("the work: %+v", o)
	}
	yoi(m, "ws", "collect", "--as", name, kept).Want(0)
	// It starts when what the first one did is on the disk, since its mounts are gone then.
	running := rig.Answer[worker](yoi(m, "worker", "spawn", "--json", kept, "--", "sleep", "1000")).ID
	var acked string
	if round > 1 {
		background(m, "yoi", "run", "--repo", "/srv/app", "--", "sleep", "1000")
		for range 2 {
			background(m, "sh", "-c", churn)
		}
		m.Eventually("much is going on", func() bool {
			acked = m.Run("cat", "/tmp/acked").Stdout
			return strings.Count(acked, "\n") > 1+2*round
		})
	}
	m.LosePower(survives)
	m.Boot()

	m.OK("yoi", "--runtime-root", "/var/lib/yoi", "ledger", "verify")
	list := rig.Answer[struct {
		Items []struct{ ID, Status string }
	}](yoi(m, "ws", "list", "--json"))
	var have []string
	for _, ws := range list.Items {
		have = append(have, ws.ID)
		if ws.Status != "active" {
			t.Errorf("the workspace %s is %s", ws.ID, ws.Status)
		}
	}
	slices.Sort(have)
	made, told := map[string]bool{kept: true}, []string{kept}
	for line := range strings.Lines(acked) {
		what, ws, _ := strings.Cut(strings.TrimSpace(line), " ")
		made[ws] = what == "made"
		if made[ws] {
			told = append(told, ws)
		}
	}
	for ws, is := range made {
		// One that was made may have been removed since the notes were read.
		if slices.Contains(have, ws) != is && (!is || ws == kept) {
			t.Errorf("of the workspace %s was said that it is there: %v; now it is: %v", ws, is, !is)
		}
	}
	if there := strings.Fields(m.OK("ls", "/var/lib/yoi/execution-workspaces")); !slices.Equal(there, have) {
		t.Errorf("on the disk are the workspaces\n%q, in the records\n%q", there, have)
	}
	type record struct{ Type, Owner, Path string }
	m.Eventually("the ledger holds what is there, and nothing else", func() bool { // the start goes on behind the first answer
		for line := range strings.Lines(yoi(m, "ledger", "show", "--held", "--json").Want(0).Stdout) {
			if r := decode[record](t, line); r.Type != "directory" && r.Type != "cache_reference" || !slices.Contains(have, r.Owner) {
				return false
			}
		}
		return true
	})
	if o := ended(t, m, work); o != (outcome{}) {
		t.Errorf("a worker that had ended: %+v", o)
	}
	if o := ended(t, m, running); !o.Lost {
		t.Errorf("a worker that ran: %+v", o)
	}
	// What is there is whole; what was made last had the least time to get to the disk.
	slices.Reverse(told[1:])
	told = slices.DeleteFunc(told, func(ws string) bool { return !slices.Contains(have, ws) })
	for _, ws := range told[:min(4, len(told))] {
		w := rig.Answer[worker](yoi(m, "worker", "spawn", "--json", ws, "--", "sh", "-c", "git fsck --strict --no-dangling 2>&1 && git log --format=%s && git status --short && cat README")).ID
		o, out := ended(t, m, w), yoi(m, "worker", "logs", w).Stdout
		want := "first\nhello\n"
		if ws == kept {
			want = name + "\nfirst\nhello\nmore\n"
		}
		if out = strings.Replace(out, "?? stamp\n", "", 1); o.ExitCode != 0 || out != want {
			t.Errorf("in the workspace %s git says %q: %+v", ws, out, o)
		}
	}
	collected := rig.Answer[struct{ ID string }](yoi(m, "ws", "create", "--json", "app@collected:"+name, "--cleanup", "keep_until_asked")).ID
	yoi(m, append([]string{"ws", "rm", "--discard", collected}, have...)...).Want(0)
	yoi(m, "gc").Want(0)
	if out := yoi(m, "ledger", "show", "--held", "--json").Want(0).Stdout; out != "" {
		t.Errorf("when all was removed the ledger holds %s", out)
	}
	if out := m.OK("ls", "-A", "/var/lib/yoi/workers", "/var/lib/yoi/execution-workspaces"); out != "/var/lib/yoi/execution-workspaces:\n\n/var/lib/yoi/workers:\n" {
		t.Errorf("when all was removed there is %s", out)
	}
	yoi(m, "ledger", "verify").Want(0)
}
