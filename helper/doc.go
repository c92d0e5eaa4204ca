// Package helper is the privileged side of the runtime: the only code that
// clones trees, makes namespaces and mounts, kills and deletes.
//
// It exists so that the daemon, which talks to the network, parses git and
// serves HTTP, needs no privilege. A caller sends typed requests that name ids;
// the helper derives every path itself, below the directory descriptor of the
// one Runtime root it was started for, with openat2(2) and RESOLVE_BENEATH. It
// never takes a path from a caller, and writes its intent to the cleanup
// ledger before every act.
//
// The same code runs in two places: behind a SOCK_SEQPACKET socket as
// yoi-helper (Serve, Dial), and inside `yoi run` (NewLocal), where it has
// whatever privilege the caller has. Both satisfy Helper.
//
// It does not promise anything against a peer that may already act as the
// Runtime root's owner: the socket admits only the uids it was given, and a
// peer can reach nothing outside that Runtime root, but inside it that peer is
// trusted to name the right ids.
package helper
