package notify

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Frugal has the collector run twice as often as it would by itself. What daemons hold is
// so little that the garbage between two runs would be most of their memory, and a run is
// a fraction of a millisecond beside their work. GOGC= in the unit goes before it.
func Frugal() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// Manager is the daemon's word to its service manager.
type Manager struct {
	Log *slog.Logger
	// Check asks the daemon's main path, as a client would, and returns the line that an
	// operator reads in `systemctl status`. Nil is a daemon without either.
	Check func(context.Context) (status string, err error)

	last  string      // the last status line
	asked chan answer // under way
}

// Ready says that the daemon serves.
func (m *Manager) Ready() { m.send(daemon.SdNotifyReady) }

// Stopping says that the daemon is about to end.
func (m *Manager) Stopping() { m.send(daemon.SdNotifyStopping) }

// Reload runs read and says when it begins and ends. The manager orders what it was
// told by the clock that only the kernel sets.
func (m *Manager) Reload(read func() error) error {
	m.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonic().Microseconds()))
	err := read()
	m.Ready()
	return err
}

func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // there is no such kernel
	}
	return time.Duration(ts.Nano())
}

// KeepAlive tells the status line whenever it changed, and that the daemon is alive as
// often as its manager asks for that (WatchdogSec=), until ctx ends. Between two of
// those it does nothing; what changed returns wakes it, at most once a second, and less
// often the longer an answer takes, which is work of the daemon's. Nil is a daemon that
// cannot tell.
func (m *Manager) KeepAlive(ctx context.Context, changed func() <-chan struct{}) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		m.Log.Warn("the service manager's watchdog interval is not understood", "error", err)
	}
	var tick <-chan time.Time
	patience := checkPatience
	if every > 0 {
		t := time.NewTicker(every / 2)
		defer t.Stop()
		// What hangs is to be told before it is killed for that.
		tick, patience = t.C, every/3
	}
	for {
		var next <-chan struct{}
		if changed != nil {
			next = changed()
		}
		began := time.Now()
		if m.ask(ctx, patience) && every > 0 {
			m.send(daemon.SdNotifyWatchdog)
		}
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return
		case <-tick:
		case <-next:
			select {
			case <-ctx.Done():
				return
			case <-tick:
			case <-time.After(max(time.Second, 20*took)):
			}
		}
	}
}

// checkPatience is for a daemon without a watchdog.
const checkPatience = 30 * time.Second

type answer struct {
	status string
	err    error
}

// ask reports whether the main path answered in time. What hangs need not look at its
// context; it is asked again only once it has answered.
func (m *Manager) ask(ctx context.Context, patience time.Duration) bool {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if m.asked == nil {
		asked := make(chan answer, 1)
		go func() {
			status, err := m.Check(within)
			asked <- answer{status, err}
		}()
		m.asked = asked
	}
	var a answer
	select {
	case a = <-m.asked:
		m.asked = nil
	case <-within.Done():
		a.err = within.Err()
	}
	if ctx.Err() != nil {
		return false
	}
	if a.err != nil {
		m.Log.Error("the main path does not answer: no keep-alive", "error", a.err)
		return false
	}
	if a.status != m.last {
		m.send("STATUS=" + strings.ReplaceAll(a.status, "\n", " "))
		m.last = a.status
	} else {
		// Nothing is new since the last time: what the work before took, and the answers
		// since, goes back to the host, which the runtime would keep for more of it.
		// That is a few milliseconds, behind an answer that woke the daemon anyway.
		debug.FreeOSMemory()
	}
	return true
}

func (m *Manager) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		m.Log.Warn("the service manager was not told", "error", err)
	}
}
