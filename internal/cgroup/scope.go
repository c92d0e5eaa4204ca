package cgroup

import "time"

// Scope is what a service manager keeps of a Worker's limits.
type Scope struct {
	// Limits are the Worker's; Workspace those of all in its workspace together, which
	// bound what a Worker of it may be given. Empty where others keep them.
	Limits, Workspace Limits
	// RuntimeMax is when the manager ends what should have ended by itself; zero is never.
	RuntimeMax time.Duration
}

// ScopeEnd is what a service manager did to a Worker.
type ScopeEnd struct {
	// Stopped: it was told to stop it. TimedOut: RuntimeMax was over. OOM: the kernel
	// killed one of its processes for memory (v2 only).
	Stopped, TimedOut, OOM bool
}
