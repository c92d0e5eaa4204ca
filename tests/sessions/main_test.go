package sessions

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// host is one way to have a Runtime.
type host struct {
	rig.Yoi
	daemons *rig.Daemons // nil without
	ws      string
}

// eachHost runs body in the four set-ups: embedded and behind the daemons, each with
// root's privilege and without any.
func eachHost(t *testing.T, body func(t *testing.T, h *host)) {
	eachHostBut(t, nil, body)
}

// eachHostBut leaves set-ups out that a test has no use for.
func eachHostBut(t *testing.T, without []string, body func(t *testing.T, h *host)) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		name    string
		uid     int
		daemons bool
	}{{"embedded/root", 0, false}, {"embedded/user", rig.Ordinary, false}, {"daemons/root", 0, true}, {"daemons/user", rig.Ordinary, true}} {
		if slices.Contains(without, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			owner := c.uid
			if c.daemons {
				owner = rig.Ordinary // the daemon never is root
			}
			p := rig.NewPlace(t, "disk", owner)
			machine := rig.Before(t)
			h := &host{}
			if c.daemons {
				h.daemons = rig.StartDaemons(t, p, c.uid)
				h.Yoi = h.daemons.Yoi(t, owner)
			} else {
				h.Yoi = p.Yoi(t)
			}
			h.OK(t, "repo", "add", p.Give(t, small).Dir, "--id", "app")
			var ws runtime.Workspace
			h.Run(t, "ws", "create", "app", "--json").Want(t, 0).JSON(t, &ws)
			h.ws = string(ws.ID)
			t.Cleanup(func() {
				if t.Failed() { // or it is gone already
					h.Run(t, "ws", "rm", "--stop", "--discard", h.ws)
				}
			})
			body(t, h)
			h.OK(t, "ws", "rm", "--stop", "--discard", h.ws)
			root := h.Root
			if c.daemons {
				h.daemons.Stop(t)
				root = h.daemons.Root
			}
			rig.Clean(t, root)
			machine.Unchanged(t)
		})
	}
}

// spawn starts a Worker and waits until it says "up".
func (h *host) spawn(t *testing.T, flags []string, script string) string {
	t.Helper()
	args := append(append([]string{"worker", "spawn", h.ws, "--json"}, flags...), "--", "/bin/sh", "-c", script)
	var w runtime.Worker
	h.Run(t, args...).Want(t, 0).JSON(t, &w)
	rig.Eventually(t, "the worker is up", func() bool { return strings.Contains(h.OK(t, "worker", "logs", string(w.ID)), "up") })
	return string(w.ID)
}

// sessions are a Worker's, as its record has them.
func (h *host) sessions(t *testing.T, wk string) []runtime.Session {
	t.Helper()
	var w runtime.Worker
	if err := json.Unmarshal([]byte(h.OK(t, "worker", "show", "--json", wk)), &w); err != nil {
		t.Fatal(err)
	}
	return w.Sessions
}

func (h *host) exec(wk string, args ...string) *exec.Cmd {
	return h.Cmd(append([]string{"worker", "exec", wk}, args...)...)
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const waits = "echo up; exec sleep 1000"
