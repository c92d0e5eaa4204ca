package systemd

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	unitbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"yoi.dev/yoi-runtime/policy"
)

const (
	// privateSocket is where the system's manager answers root without a bus.
	privateSocket = "/run/systemd/private"

	manager = "org.freedesktop.systemd1.Manager"
	unit    = "org.freedesktop.systemd1.Unit"
	scope   = "org.freedesktop.systemd1.Scope"
)

// Booted reports whether the host runs systemd, as sd_booted(3) does.
func Booted() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// Own is the service manager that started this process, nil for none: an ordinary
// user's own, or the system's.
func Own() *Manager {
	if os.Getenv("INVOCATION_ID") == "" { // systemd.exec(5)
		return nil
	}
	if os.Geteuid() == 0 {
		return new(Manager)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		socket := dir + "/systemd/private"
		if _, err := os.Lstat(socket); err == nil {
			return &Manager{Socket: socket}
		}
	}
	return nil
}

// restAfter is how long a connection that nobody needs is kept for the next launch.
const restAfter = 30 * time.Second

// Manager is the host's service manager. It connects when it is needed, and again after
// the manager was executed anew. Who is connected is told of all units of the host, and
// woken up by it; so what nobody needs is given up. Its methods may be called at once.
type Manager struct {
	// Socket is where it answers without a bus; "" is the system's.
	Socket string

	mu    sync.Mutex
	conn  *dbus.Conn
	users int         // calls under way
	rest  *time.Timer // since the last of them
	// seen outlives a connection: what was told once stays true.
	seen signals
}

// signals takes the manager's signals in the order in which they come, before any
// reply that was sent after them: so a question answers what it asks, and also
// that nothing said before it is still on its way.
type signals struct {
	mu sync.Mutex
	// started has who waits for the end of a unit's start job.
	started map[string]chan string
	// stopping is true for those of our scopes that somebody stops.
	stopping map[dbus.ObjectPath]bool
}

// DeliverSignal implements dbus.SignalHandler.
func (s *signals) DeliverSignal(_, _ string, m *dbus.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Name {
	case manager + ".JobRemoved": // id, job, unit, result
		if len(m.Body) != 4 {
			return
		}
		name, _ := m.Body[2].(string)
		result, _ := m.Body[3].(string)
		if c := s.started[name]; c != nil {
			delete(s.started, name)
			c <- result
		}
	case "org.freedesktop.DBus.Properties.PropertiesChanged": // interface, changed, invalidated
		if _, ours := s.stopping[m.Path]; !ours || len(m.Body) != 3 {
			return
		}
		changed, _ := m.Body[1].(map[string]dbus.Variant)
		if state, _ := changed["SubState"].Value().(string); strings.HasPrefix(state, "stop-") {
			s.stopping[m.Path] = true
		}
	}
}

// await has c told the result of a unit's next job; nil is nobody.
func (s *signals) await(name string, c chan string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil {
		s.started = make(map[string]chan string)
	}
	if c == nil {
		delete(s.started, name)
		return
	}
	s.started[name] = c
}

func (s *signals) watch(p dbus.ObjectPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping == nil {
		s.stopping = make(map[dbus.ObjectPath]bool)
	}
	if !s.stopping[p] {
		s.stopping[p] = false
	}
}

func (s *signals) wasStopped(p dbus.ObjectPath) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping[p]
}

// needed reports whether anybody waits for what the manager tells.
func (s *signals) needed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.started)+len(s.stopping) > 0
}

func (s *signals) forget(p dbus.ObjectPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stopping, p)
}

// Close ends the connection.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rest != nil {
		m.rest.Stop()
	}
	if m.conn == nil {
		return nil
	}
	return m.conn.Close()
}

// use is a live connection, which stays until done is called.
func (m *Manager) use() (c *dbus.Conn, done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil || !m.conn.Connected() {
		if m.conn, err = m.dial(); err != nil {
			return nil, nil, err
		}
	}
	m.users++
	return m.conn, m.done, nil
}

func (m *Manager) done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
	if m.rest == nil {
		m.rest = time.AfterFunc(restAfter, m.leave)
	}
	m.rest.Reset(restAfter)
}

// leave ends the connection unless somebody needs it. Whoever does so now calls done
// later.
func (m *Manager) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil || m.users > 0 || m.seen.needed() {
		return
	}
	_ = m.conn.Close() // the next one dials
	m.conn = nil
}

func (m *Manager) dial() (*dbus.Conn, error) {
	c, err := dbus.Dial("unix:path="+cmp.Or(m.Socket, privateSocket), dbus.WithSignalHandler(&m.seen))
	if err != nil {
		return nil, unavailable(err)
	}
	// There is no bus behind this socket, hence no Hello.
	if err := c.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		c.Close()
		return nil, unavailable(err)
	}
	return c, nil
}

func unavailable(err error) error {
	return policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the service manager does not answer").Because(err)
}

// call calls a method of the manager's own object.
func (m *Manager) call(ctx context.Context, method string, args ...any) error {
	c, done, err := m.use()
	if err != nil {
		return err
	}
	defer done()
	call := c.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx, manager+"."+method, 0, args...)
	if call.Err != nil {
		d := policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the service manager refuses").With("method", method)
		if e, ok := call.Err.(dbus.Error); ok {
			d = d.With("error", e.Name)
		}
		return d.Because(call.Err)
	}
	return nil
}

// noUnit reports whether the manager has no unit of the name it was asked about.
func noUnit(err error) bool { return named(err, "NoSuchUnit") }

// named reports whether the manager's answer is an error of its own of that name.
func named(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == "org.freedesktop.systemd1."+name
}

// property reads one property of a unit.
func (m *Manager) property(ctx context.Context, name, iface, property string) (string, error) {
	c, done, err := m.use()
	if err != nil {
		return "", err
	}
	defer done()
	var v dbus.Variant
	call := c.Object("org.freedesktop.systemd1", pathOf(name)).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, iface, property)
	if err := call.Store(&v); err != nil {
		return "", policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the service manager does not say what became of a worker's scope").Because(err)
	}
	s, _ := v.Value().(string)
	return s, nil
}

func pathOf(name string) dbus.ObjectPath {
	return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + unitbus.PathBusEscape(name))
}
