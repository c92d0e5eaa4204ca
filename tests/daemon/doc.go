// Package daemon proves the two-process set-up: yoi-runtimed as an ordinary
// user, yoi-helper as root or as that user, and a Worker that neither's death
// may touch.
package daemon
