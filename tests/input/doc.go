// Package input tries every kind of repository that people have, from the
// command line: each works and arrives exactly, or is refused with a diagnostic
// that names the reason.
package input
