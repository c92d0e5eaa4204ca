// Package journal writes a daemon's log into the systemd journal with structured
// fields, so that an operator asks for what concerns one Worker, one workspace or one
// refusal (journalctl YOI_WORKER_ID=…), and journalctl -x explains it.
//
// It exists because what daemons log is partly made by strangers: names in a
// repository, words of a Worker. The names of fields are a closed list, ids go into
// their field only if they are ids, and all other text is one line of printable
// characters in MESSAGE. And because a journal that stands still must hold up nobody:
// callers put entries into a bounded queue; what does not fit is counted, and the count
// is an entry as soon as there is room.
//
// It writes the native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL), a few lines, to a
// socket with deadlines. go-systemd's Send has none, so that a daemon could not end
// while the journal stands still, passes names on that are no names, and its socket
// cannot be another for a test that attacks it. Of that library are the priorities and
// the look at JOURNAL_STREAM.
//
// Where there is no journal the same records are logfmt or JSON on standard error.
package journal
