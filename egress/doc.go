// Package egress is how a Worker whose network is an allowlist reaches what the
// list names, and how others learn what it did.
//
// Such a Worker has the network namespace of one without a network: loopback and no
// route. What leaves goes through the program yoi-egress, one process for each
// Worker, whose listening sockets were opened inside that namespace and handed out
// of it. So the only ways out are the ones that this program takes, a dead one is no
// network, and nothing of ours runs where the Worker could reach it. It is a process
// for each Worker so that nobody's hostile bytes are parsed beside another one's
// connections and secrets; it is not the helper, which is root, nor the daemon,
// whose restart Workers outlive.
//
// The program itself runs in a sandbox of package nsexec: a uid of its own, no file
// system but its own executable and the resolver's configuration, a short list of
// system calls, the host's network. Its PID 1 ends it when the Worker's ends.
//
// Package egress has what both sides share (configuration, log, counters), package
// proxy the program.
//
// # What it does not promise
//
// Names, not content: within a permitted TLS connection the Worker may say what it
// likes to whoever answers at that name, and a server that serves other names too
// (domain fronting) is the rule's own affair. A protocol that turns to TLS after a
// beginning of its own is not looked into.
package egress
