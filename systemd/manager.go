package systemd

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

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

// Manager is the host's service manager. It connects when it is first needed, and
// again after the manager was executed anew. Its methods may be called at once.
type Manager struct {
	// Socket is where it answers without a bus; "" is the system's.
	Socket string

	mu   sync.Mutex
	conn *dbus.Conn
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

func (s *signals) forget(p dbus.ObjectPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stopping, p)
}

// Close ends the connection.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		return nil
	}
	return m.conn.Close()
}

// connection is a live one.
func (m *Manager) connection() (*dbus.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && m.conn.Connected() {
		return m.conn, nil
	}
	c, err := dbus.Dial("unix:path="+cmp.Or(m.Socket, privateSocket), dbus.WithSignalHandler(&m.seen))
	if err != nil {
		return nil, unavailable(err)
	}
	// There is no bus behind this socket, hence no Hello.
	if err := c.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		c.Close()
		return nil, unavailable(err)
	}
	m.conn = c
	return c, nil
}

func unavailable(err error) error {
	return policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the service manager does not answer").Because(err)
}

// call calls a method of the manager's own object.
func (m *Manager) call(ctx context.Context, method string, args ...any) error {
	c, err := m.connection()
	if err != nil {
		return err
	}
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
	c, err := m.connection()
	if err != nil {
		return "", err
	}
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
