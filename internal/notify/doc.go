// Package notify is what a daemon says to its service manager (sd_notify(3)): that it
// serves, what it is at, that it reads its configuration again, and that it is alive.
//
// Alive means that its main path answers. A keep-alive from a timer would say only that
// the process has timers, and a daemon whose lock is held for good would be left as it
// is; so each keep-alive is what a request got, and without an answer there is none.
//
// Without a service manager every function does nothing.
package notify
