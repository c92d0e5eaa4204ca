// Package runtime is the one orchestrator: it takes a request through policy,
// repository point, cache, Execution Workspace, Worker, outcome and cleanup,
// in that order, and is the only code that knows the order.
//
// It exists so that the order in which things are written down, made, recorded
// and taken away again stands in one place (create.go, spawn.go, cleanup.go)
// and can be read top to bottom. It does no privileged work itself: that is
// the helper's, in this process for `yoi run` or behind a socket for the
// daemon. It promises nothing about a Runtime root that another program writes.
package runtime
