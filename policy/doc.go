// Package policy holds what the rest of the runtime agrees on before anything
// is done: the ids, the selectors and points, the five policies of a Worker
// (sandbox, dirty state, cleanup, network, artifacts) and the typed
// diagnostics with their stable codes.
//
// It exists because the decision "may this be done" must be the same in the
// CLI, the daemon and the privileged helper, and must be testable without a
// kernel. Everything here is pure: no I/O, no clock, no process state. A value
// that Validate accepts is well formed; it is not a promise that this host can
// carry it out, which is for the probe of the package concerned to say.
package policy

//go:generate go run ./mkdiagnostics ../docs/diagnostics.md
//go:generate go run ./mkcatalog ../systemd/yoi.catalog
