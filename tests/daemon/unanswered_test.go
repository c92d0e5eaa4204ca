package daemon

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestUnansweredLaunch cuts the helper's connections off when it has launched a Worker
// and says so. The caller is refused, and no Worker of which nobody knows goes on: the
// workspace is free, and the record says that there is none.
func TestUnansweredLaunch(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	repo := p.Give(t, testenv.RepoSmall(t))
	d := rig.NewDaemons(t, p, 0)
	d.StartHelper(t)
	m := middle(t, d)
	d.HelperSoc = m.path
	d.StartRuntimed(t)
	ws := d.Workspace(t, repo.Dir, func(r *runtime.CreateWorkspaceRequest) { r.Strategy = policy.StrategyCopy })

	m.arm()
	spawn := func(script string) (runtime.Worker, error) {
		return d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", script}})
	}
	_, err := spawn("sleep 1000")
	wantCode(t, err, policy.CodeUnavailable)
	if !m.cut() {
		t.Fatal("the helper answered nothing that could be cut off")
	}
	list, err := d.Client.ListWorkers(t.Context(), runtime.ListFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Status != runtime.WorkerFailed {
		t.Errorf("the records are %+v", list.Items)
	}
	if out := strings.TrimSpace(rig.Command(t, "sh", "-c", `pgrep -f '^sleep 1000$' || :`)); out != "" {
		t.Errorf("the Worker runs: %s", out)
	}
	w, err := spawn("exit 5")
	if err != nil {
		t.Fatal(err)
	}
	if w, err = d.Client.WaitWorker(t.Context(), w.ID); err != nil || w.Outcome == nil || w.Outcome.ExitCode != 5 {
		t.Errorf("the next one ended with %+v, %v", w.Outcome, err)
	}
	if _, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Error(err)
	}
	d.Stop(t)
	rig.Clean(t, d.Root)
}

// man is in the middle between runtimed and its helper.
type man struct {
	path, helper string

	mu     sync.Mutex
	armed  bool
	launch map[uint64]bool // ids of requests whose answers are not passed on
	done   bool
	conns  []*net.UnixConn
}

func (m *man) arm() { m.mu.Lock(); m.armed = true; m.mu.Unlock() }

func (m *man) cut() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.done }

func middle(t *testing.T, d *rig.Daemons) *man {
	t.Helper()
	m := &man{path: filepath.Join(filepath.Dir(d.HelperSoc), "middle"), helper: d.HelperSoc, launch: make(map[uint64]bool)}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: m.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(m.path, 0o666); err != nil {
		t.Fatal(err)
	}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		for {
			near, err := l.AcceptUnix()
			if err != nil {
				return
			}
			far, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: m.helper, Net: "unixpacket"})
			if err != nil {
				near.Close()
				continue
			}
			m.mu.Lock()
			m.conns = append(m.conns, near, far)
			m.mu.Unlock()
			pumps.Go(func() { m.pump(far, near, m.asks) })
			pumps.Go(func() { m.pump(near, far, m.answers) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		m.mu.Lock()
		for _, c := range m.conns { // the daemons end later
			c.Close()
		}
		m.mu.Unlock()
		pumps.Wait()
	})
	return m
}

// asks sees a request, answers what is said to it; both report whether it is passed on.
func (m *man) asks(id uint64, op string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.armed && op == "launch" {
		m.armed, m.launch[id] = false, true
	}
	return true
}

func (m *man) answers(id uint64, _ string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.launch[id] {
		delete(m.launch, id)
		m.done = true
		return false
	}
	return true
}

// pump passes messages on, descriptors too, until one is not passed on.
func (m *man) pump(to, from *net.UnixConn, look func(id uint64, op string) bool) {
	defer to.Close()
	defer from.Close()
	buf, oob := make([]byte, 1<<20), make([]byte, 4096)
	for {
		n, oobn, _, _, err := from.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		var head struct {
			ID uint64 `json:"id"`
			Op string `json:"op"`
		}
		on := json.Unmarshal(buf[:n], &head) == nil && look(head.ID, head.Op)
		if on {
			_, _, err = to.WriteMsgUnix(buf[:n], oob[:oobn], nil)
		}
		msgs, perr := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range msgs {
			if fds, ferr := unix.ParseUnixRights(&msgs[i]); ferr == nil {
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
		}
		if !on || errors.Join(err, perr) != nil {
			return
		}
	}
}
