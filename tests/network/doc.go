// Package network runs Workers whose network is an allowlist: real tools through
// the proxy, what a hostile Worker tries against it, and what becomes of it when
// somebody dies. The tests have a network namespace of their own with an outside in
// another one, whose addresses look public and which has its own name server. No
// packet reaches the machine's network.
package network
