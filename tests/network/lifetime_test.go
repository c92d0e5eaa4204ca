package network

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// asks tries a permitted server and another at each USR1, and says what became of it.
const asks = `ask() { curl -sS --max-time 5 http://web.example/ || echo none; curl -s -o /dev/null -f --max-time 5 http://other.example/ || echo refused; }
trap ask USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done`

const (
	ready = "ready\n"
	asked = "http for web.example\nrefused\n"
	cut   = "none\nrefused\n"
)

// asking is a Worker behind daemons with one permitted server.
type asking struct {
	d      *rig.Daemons
	ws     policy.AllocationID
	id     policy.WorkerID
	said   string
	before *rig.Machine
}

func newAsking(t *testing.T, helperUID int) *asking {
	t.Helper()
	w := newWorker(t, rig.Ordinary)
	a := &asking{before: rig.Before(t), d: rig.NewDaemons(t, w.place, helperUID)}
	a.d.HelperEnv = append(a.d.HelperEnv, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
	a.d.Start(t)
	a.ws = a.d.Workspace(t, w.repo, func(r *runtime.CreateWorkspaceRequest) {
		r.Sandbox.Network = policy.NetworkPolicy{Mode: policy.NetworkAllowlist, Rules: []string{"web.example:80"}}
	}).ID
	a.id = a.d.Spawn(t, a.ws, asks).ID
	a.says(t, ready)
	return a
}

// says waits for what the Worker says next.
func (a *asking) says(t *testing.T, want string) {
	t.Helper()
	a.said += want
	rig.Eventually(t, "the Worker says "+want, func() bool { return said(t, a.d, a.id) == a.said })
}

func (a *asking) ask(t *testing.T, want string) {
	t.Helper()
	if err := a.d.Client.SignalWorker(t.Context(), a.id, runtime.SignalRequest{Signal: "USR1"}); err != nil {
		t.Fatal(err)
	}
	a.says(t, want)
}

// counted wants n rounds to be counted and logged.
func (a *asking) counted(t *testing.T, n int, lost bool) {
	t.Helper()
	rep, err := a.d.Client.WorkerEgress(t.Context(), a.id, runtime.EgressRequest{})
	if err != nil {
		t.Fatal(err)
	}
	allowed, refused := 0, 0
	for _, d := range rep.Decisions {
		switch {
		case d.Reason.Refusal():
			refused++
		case d.Allowed && !d.Closed:
			allowed++
		}
	}
	if u := rep.Usage; int(u.Allowed) != n || int(u.Refused) != n || allowed != n || refused != n || rep.Lost != lost {
		t.Errorf("after %d rounds: usage %+v, logged %d and %d, lost %v", n, u, allowed, refused, rep.Lost)
	}
}

func (a *asking) restart(t *testing.T) {
	t.Helper()
	a.d.KillBoth(t)
	a.d.Start(t)
}

// end stops the Worker and wants nothing left.
func (a *asking) end(t *testing.T) runtime.Worker {
	t.Helper()
	if _, err := a.d.Client.StopWorker(t.Context(), a.id, runtime.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	w, err := a.d.Client.WaitWorker(t.Context(), a.id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.d.Client.RemoveWorkspace(t.Context(), a.ws, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Error(err)
	}
	a.d.Stop(t)
	rig.Clean(t, a.d.Root)
	a.before.Unchanged(t)
	return w
}

// proxyPID is the proxy's PID 1, which the ledger names and the Worker's directory
// identifies.
func (a *asking) proxyPID(t *testing.T) int {
	t.Helper()
	held, err := rig.Held(a.d.Root)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(held, func(h ledger.Held) bool {
		return h.Resource.Kind == ledger.KindProcess && h.Resource.Attrs["worker"] == string(a.id) && h.Resource.Attrs["role"] == "egress"
	}) {
		t.Errorf("the ledger has no proxy of %s", a.id)
	}
	var ident ledger.Identity
	b, err := os.ReadFile(filepath.Join(a.d.Root, "workers", string(a.id), "metadata/egress.process"))
	if err == nil {
		err = json.Unmarshal(b, &ident)
	}
	if err != nil || ident.PID == 0 {
		t.Fatalf("the proxy's process: %s, %v", b, err)
	}
	return ident.PID
}

func eachHelper(t *testing.T, f func(t *testing.T, uid int)) {
	for name, uid := range map[string]int{"privileged": 0, "user": rig.Ordinary} {
		t.Run(name, func(t *testing.T) { f(t, uid) })
	}
}

// The way out outlives both daemons, with its counts and its log, and goes with the
// Worker.
func TestProxyOutlivesDaemons(t *testing.T) {
	eachHelper(t, func(t *testing.T, uid int) {
		a := newAsking(t, uid)
		a.ask(t, asked)
		a.counted(t, 1, false)
		a.restart(t)
		a.ask(t, asked)
		a.counted(t, 2, false)
		a.restart(t)
		w := a.end(t)
		if n := w.Network; n == nil || n.Allowed != 2 || n.Refused != 2 || hasCode(w.Diagnostics, policy.CodeEgressLost) {
			t.Errorf("the Worker's end tells %+v, %+v", n, w.Diagnostics)
		}
	})
}

// A Worker may be given more than its workspace's others have, and only it.
func TestSpawnAllow(t *testing.T) {
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			w := newWorker(t, uid)
			before := rig.Before(t)
			w.yoi.OK(t, "repo", "add", "--id", "app", w.repo)
			const asks = "for h in web other a.wild; do curl -sS -f --max-time 5 http://$h.example/ 2>/dev/null || echo none; done"
			for network, want := range map[string][]string{
				"none":           {"none\nnone\nnone\n", "none\nhttp for other.example\nhttp for a.wild.example\n"},
				"web.example:80": {"http for web.example\nnone\nnone\n", "http for web.example\nhttp for other.example\nhttp for a.wild.example\n"},
				"--network host": nil,
			} {
				create := []string{"ws", "create", "app", "--json"}
				switch network {
				case "none":
				case "--network host":
					rig.Configure(t, w.yoi.Root, uid, "[sandbox]\nallow_host_network = true\n")
					create = append(create, "--network", "host")
				default:
					create = append(create, "--allow", network)
				}
				var ws struct{ ID string }
				w.yoi.Run(t, create...).Want(t, 0).JSON(t, &ws)
				spawn := func(more ...string) []string {
					return append(append([]string{"worker", "spawn", "--json", ws.ID}, more...), "--", "sh", "-c", asks)
				}
				more := []string{"--allow", "other.example:80", "--allow", "*.wild.example:80"}
				if want == nil {
					w.yoi.Run(t, spawn(more...)...).Refused(t, 1, policy.CodePolicyInvalid)
					w.yoi.OK(t, "ws", "rm", "--discard", ws.ID)
					continue
				}
				for i, out := range want {
					var worker struct {
						ID    string
						Allow []string
					}
					args := spawn()
					if i == 1 {
						args = spawn(more...)
					}
					w.yoi.Run(t, args...).Want(t, 0).JSON(t, &worker)
					w.yoi.OK(t, "worker", "wait", worker.ID)
					if got := w.yoi.OK(t, "worker", "logs", worker.ID); got != out {
						t.Errorf("%s, %v: the Worker reached\n%s\nwant\n%s", network, args, got, out)
					}
					if len(worker.Allow) != 2*i {
						t.Errorf("the record has %q", worker.Allow)
					}
					var rep runtime.EgressReport
					w.yoi.Run(t, "worker", "egress", "--json", worker.ID).Want(t, 0).JSON(t, &rep)
					if n := len(rep.Usage.Rules); i == 1 && (rep.Policy.Mode != policy.NetworkAllowlist || n < 2 || int(rep.Usage.Allowed) != n) {
						t.Errorf("%s: the report is %+v", network, rep)
					}
				}
				w.yoi.Run(t, spawn("--allow", "10.0.0.5:80")...).Refused(t, 1, policy.CodePolicyInvalid)
				w.yoi.Run(t, spawn("--allow", "http://web.example")...).Refused(t, 1, policy.CodeNetworkRuleInvalid)
				w.yoi.OK(t, "ws", "rm", "--discard", ws.ID)
			}
			rig.Clean(t, w.yoi.Root)
			before.Unchanged(t)
		})
	}
}

// A proxy that is killed takes the way out with it, and the Worker's end says so: in
// front of the helper, and behind its back.
func TestProxyKilled(t *testing.T) {
	for name, behind := range map[string]bool{"seen": false, "unseen": true} {
		t.Run(name, func(t *testing.T) {
			eachHelper(t, func(t *testing.T, uid int) {
				a := newAsking(t, uid)
				a.ask(t, asked)
				pid := a.proxyPID(t)
				if behind {
					a.d.KillBoth(t)
				}
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if behind {
					a.d.Start(t)
				}
				rig.Eventually(t, "the proxy's end is known", func() bool {
					rep, err := a.d.Client.WorkerEgress(t.Context(), a.id, runtime.EgressRequest{})
					return err == nil && rep.Lost
				})
				a.ask(t, cut)
				a.counted(t, 1, true)
				if w := a.end(t); !hasCode(w.Diagnostics, policy.CodeEgressLost) || w.Status != runtime.WorkerExited {
					t.Errorf("the Worker is %s, with %+v", w.Status, w.Diagnostics)
				}
			})
		})
	}
}

func hasCode(ds []policy.Diagnostic, c policy.Code) bool {
	return slices.ContainsFunc(ds, func(d policy.Diagnostic) bool { return d.Code == c })
}
