package rig

import (
	"syscall"
	"testing"
	"time"
)

// TryStart starts both and reports whether both answered; one that dies at its
// start is no failure.
func (d *Daemons) TryStart(t testing.TB) bool {
	t.Helper()
	d.Helper, d.Runtimed = d.start(t, d.HelperCmd(t)), nil
	if !d.Helper.answered(d.HelperSoc, "unixpacket") {
		return false
	}
	d.Runtimed = d.start(t, d.RuntimedCmd(t))
	return d.Runtimed.answered(d.API, "unix")
}

func (p *Daemon) answered(socket, network string) bool {
	for deadline := time.Now().Add(20 * time.Second); p.Running() && time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if answers(socket, network) {
			return p.Running()
		}
	}
	return false
}

// Died reports whether either has ended.
func (d *Daemons) Died() bool {
	return !d.Helper.Running() || (d.Runtimed != nil && !d.Runtimed.Running())
}

// KillBoth kills what still runs.
func (d *Daemons) KillBoth(t testing.TB) {
	t.Helper()
	for _, p := range []*Daemon{d.Runtimed, d.Helper} {
		if p != nil && p.Running() {
			p.Kill(t)
		}
	}
}

// End sends TERM to both in order, and reports whether one was killed all the
// same: by its crash point.
func (d *Daemons) End(t testing.TB) (killed bool) {
	t.Helper()
	for _, p := range []*Daemon{d.Runtimed, d.Helper} {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
		<-p.exited
		ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		killed = killed || ws.Signaled()
	}
	return killed
}

// Restart starts whichever of the two does not run.
func (d *Daemons) Restart(t testing.TB) {
	t.Helper()
	if !d.Helper.Running() {
		d.StartHelper(t)
	}
	if d.Runtimed == nil || !d.Runtimed.Running() {
		d.StartRuntimed(t)
	}
}
