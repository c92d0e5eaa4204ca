package registry

import (
	"slices"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// SessionKind is how somebody entered a Worker's sandbox.
type SessionKind string

const (
	SessionExec   SessionKind = "exec"   // a command of its own
	SessionAttach SessionKind = "attach" // the Worker's terminal
)

// SessionEnd is how a session ended.
type SessionEnd string

const (
	SessionExited      SessionEnd = "exited"
	SessionSignaled    SessionEnd = "signaled"
	SessionWorkerEnded SessionEnd = "worker_ended" // the kernel ended it with the Worker
	SessionDetached    SessionEnd = "detached"     // from a terminal that goes on
	SessionLost        SessionEnd = "lost"         // the process that held it died
)

// Session is the record of one time that somebody entered a Worker's sandbox.
type Session struct {
	ID   policy.SessionID `json:"id"`
	Kind SessionKind      `json:"kind"`
	// UID is the user on whose behalf, as the kernel says.
	UID         uint32    `json:"uid"`
	Command     []string  `json:"command,omitempty"`
	RelativeCwd string    `json:"relative_cwd,omitempty"`
	Terminal    bool      `json:"terminal,omitempty"`
	StartedAt   time.Time `json:"started_at"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	// End is absent while it goes on. ExitCode is 128+number for a signal.
	End      SessionEnd `json:"end,omitempty"`
	ExitCode int        `json:"exit_code,omitempty"`
	Signal   string     `json:"signal,omitempty"`
	// HungUp says that its caller had gone before it ended.
	HungUp bool `json:"hung_up,omitempty"`
	// Denied are the system calls that it was refused, under the seccomp profile audit.
	Denied []DeniedCall `json:"denied,omitempty"`
}

// maxSessions bounds a Worker's record.
const maxSessions = 200

// AddSession appends a session; the oldest that has ended makes room.
func (w *Worker) AddSession(s Session) {
	if len(w.Sessions) >= maxSessions {
		old := max(0, slices.IndexFunc(w.Sessions, func(v Session) bool { return v.End != "" }))
		w.Sessions = slices.Delete(w.Sessions, old, old+1)
		w.SessionsBefore++
	}
	w.Sessions = append(w.Sessions, s)
}

// DropSession takes back a session that never was.
func (w *Worker) DropSession(id policy.SessionID) {
	w.Sessions = slices.DeleteFunc(w.Sessions, func(v Session) bool { return v.ID == id })
}

// EndSession records how a session ended.
func (w *Worker) EndSession(s Session) {
	for i, v := range w.Sessions {
		if v.ID == s.ID {
			w.Sessions[i] = s
		}
	}
}

// LoseSessions marks the sessions that have no end: whoever held them is gone.
func (w *Worker) LoseSessions(at time.Time) {
	for i := range w.Sessions {
		if s := &w.Sessions[i]; s.End == "" {
			s.End, s.EndedAt = SessionLost, at
		}
	}
}
