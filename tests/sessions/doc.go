// Package sessions enters running Workers as their operators do: without a daemon
// and through the pair of them, as root and as an ordinary user.
package sessions
