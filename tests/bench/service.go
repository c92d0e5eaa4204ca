package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/systemd"
	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// machine boots systemd with the service installed and started, and a repository.
func (r *room) machine() (*host.Host, *api.Client) {
	module, err := rig.ModuleDir()
	r.must(err)
	tree := r.TempDir()
	r.do("make", "--silent", "-C", module, "install", "DESTDIR="+tree)
	h := host.New(r)
	h.Copy(tree, "/")
	for _, args := range [][]string{
		{"systemd-sysusers", "yoi.conf"}, {"systemd-tmpfiles", "--create", "yoi.conf"}, {"systemctl", "daemon-reload"},
		{"systemctl", "start", "yoi-helper.socket", "yoi-runtimed.socket", "dbus.socket"},
		{"sh", "-c", `mkdir /srv/app && cd /srv/app && git init -q -b main && echo hello >README && git add . &&
			git -c user.name=a -c user.email=a@example.com commit -qm first`},
	} {
		h.OK(args...)
	}
	c := api.NewClient(h.Path("/run/yoi/runtimed.sock"))
	r.Cleanup(func() { c.Close() })
	first := timed(func() { _, err = c.AddRepository(r.ctx, runtime.AddRepositoryRequest{Source: "/srv/app"}) })
	r.must(err)
	r.fact("first request, which starts both daemons by their sockets", milliseconds(first), "ms")
	return h, c
}

func (r *room) place(c *api.Client) policy.AllocationID {
	ws, err := c.CreateWorkspace(r.ctx, runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: "app"}}})
	r.must(err)
	return ws.ID
}

// runIn starts a Worker with /bin/true and waits for its end.
func (r *room) runIn(c *api.Client, ws policy.AllocationID) {
	w, err := c.SpawnWorker(r.ctx, runtime.SpawnWorkerRequest{AllocationID: ws, Command: []string{"true"}})
	r.must(err)
	w, err = c.WaitWorker(r.ctx, w.ID)
	r.must(err)
	if w.Outcome == nil || w.Outcome.ExitCode != 0 {
		r.Fatalf("/bin/true ended so: %+v", w.Outcome)
	}
}

// scopeProgram is this program's name while it measures on the machine.
const scopeProgram = "yoi-bench-scope"

// scopeCalls is how many calls a scope takes: StartTransientUnit. The end of its job
// comes as a signal.
const scopeCalls = 1

// scopeAgainstPing has a process put into a scope, as each launch does, in turn with
// the D-Bus round trip of `busctl call … Ping`.
func scopeAgainstPing(r *room) {
	h, _ := r.machine()
	self, err := os.ReadFile("/proc/self/exe")
	r.must(err)
	h.Write("/var/tmp/"+scopeProgram, string(self), 0o755)
	var sides [2][]time.Duration
	r.must(json.Unmarshal([]byte(h.OK("/var/tmp/"+scopeProgram, strconv.Itoa(r.runs(200)))), &sides))
	r.times(fmt.Sprintf("scope set-up, %d call", scopeCalls), "busctl call … Ping", 2*scopeCalls, sides[0], sides[1])
}

func scopeStage() {
	if filepath.Base(os.Args[0]) != scopeProgram {
		return
	}
	sides, err := measureScopes()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(sides)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func measureScopes() (sides [2][]time.Duration, err error) {
	ctx := context.Background()
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return sides, err
	}
	m := new(systemd.Manager)
	defer m.Close()
	for i := range n + 1 { // the first connects, and does not count
		parked := exec.Command("sleep", "1000")
		if err := parked.Start(); err != nil {
			return sides, err
		}
		var serr, perr error
		own := timed(func() {
			serr = m.Start(ctx, policy.WorkerID(fmt.Sprintf("wk-%d", i)), "ws-bench", cgroup.Scope{}, parked.Process.Pid)
		})
		peer := timed(func() {
			perr = exec.Command("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.DBus.Peer", "Ping").Run()
		})
		if err := parked.Process.Kill(); err != nil {
			return sides, err
		}
		_ = parked.Wait() // it was killed
		if serr != nil || perr != nil {
			return sides, fmt.Errorf("scope: %v; ping: %v", serr, perr)
		}
		if i > 0 {
			sides[0], sides[1] = append(sides[0], own), append(sides[1], peer)
		}
	}
	return sides, nil
}

var daemons = []string{"yoi-runtimed", "yoi-helper"}

// idleDaemons counts how often the daemons' threads run while nobody asks for
// anything. A keep-alive of the watchdog falls into few of the times that are looked at.
func idleDaemons(r *room) {
	h, c := r.machine()
	r.runIn(c, r.place(c))
	c.Close()
	h.OK("sleep", "40") // what follows a Worker's end: the helper leaves the manager after half a minute
	span := 20 * time.Second
	if r.quick {
		span = 5 * time.Second
	}
	var before, after, rss int64
	count := func() (n int64) {
		for _, u := range daemons {
			n += h.Switches(u)
		}
		return n
	}
	before = count()
	var windows []float64
	for range 10 {
		from := count()
		select {
		case <-r.ctx.Done():
		case <-time.After(span / 10):
		}
		windows = append(windows, float64(count()-from)/(span/10).Seconds())
	}
	after = count()
	usual := median(windows)
	for _, u := range daemons {
		rss += h.Resident(u)
	}
	r.goOn()
	r.add(row{What: "context switches of both idle daemons between keep-alives, per second", Against: "none", Target: 1, Ratio: usual,
		Met: usual == 0, Own: usual, Unit: "/s", Runs: len(windows)})
	r.fact("the same in "+span.String()+", keep-alives and all", float64(after-before), "")
	r.add(row{What: "memory of both idle daemons", Against: "40 MiB", Target: 1, Ratio: float64(rss) / (40 << 20), Met: rss <= 40<<20,
		Own: float64(rss) / (1 << 20), Peer: 40, Unit: "MiB", Runs: 1})
}

// sustainedScopes launches 200 Workers a minute for ten minutes, each in a scope, and
// compares what there is then with what there was.
func sustainedScopes(r *room) {
	h, c := r.machine()
	span, every := 10*time.Minute, 300*time.Millisecond
	if r.quick {
		span = 30 * time.Second
	}
	ws := r.place(c)
	for range 20 { // what is made once
		r.runIn(c, ws)
	}
	c.Close()
	before, memory := h.Census(daemons...), h.Resident(daemons[0])+h.Resident(daemons[1])
	tick := time.NewTicker(every)
	defer tick.Stop()
	n := 0
	for end := time.Now().Add(span); time.Now().Before(end); n++ {
		r.runIn(c, ws)
		select {
		case <-r.ctx.Done():
		case <-tick.C:
		}
		r.goOn()
	}
	c.Close()
	after := h.Census(daemons...)
	for deadline := time.Now().Add(time.Minute); after.More(before) && time.Now().Before(deadline); after = h.Census(daemons...) {
		time.Sleep(100 * time.Millisecond)
	}
	if after.More(before) {
		r.Errorf("%d launches leave %+v of %+v", n, after, before)
	}
	grown := float64(h.Resident(daemons[0])+h.Resident(daemons[1])) / float64(memory)
	r.add(row{What: fmt.Sprintf("memory of both daemons after %d launches", n), Against: "before", Target: 1.25, Ratio: grown, Met: grown <= 1.25,
		Own: grown * float64(memory) / (1 << 20), Peer: float64(memory) / (1 << 20), Unit: "MiB", Runs: 1})
}
