package journal

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"

	sd "github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Formats are what --log-format can name.
const Formats = "auto, journal, logfmt or json"

// Options of a daemon's log.
type Options struct {
	// Format is one of Formats; "" is auto: the journal where standard error leads
	// there anyway, else logfmt on standard error.
	Format     string
	Identifier string // the program's name
	Level      slog.Leveler
	Stderr     io.Writer // for other formats, and what the journal refuses
}

// Log is a daemon's log. Close it last.
type Log struct {
	*slog.Logger
	// Journal is nil unless the log goes there.
	Journal *Writer
}

// Open opens a daemon's log.
func Open(o Options) (*Log, error) {
	format := o.Format
	if format == "" || format == "auto" {
		format = "logfmt"
		// A malformed JOURNAL_STREAM is none: this says where to log, and has to work.
		if ok, err := sd.StderrIsJournalStream(); err == nil && ok {
			format = "journal"
		}
	}
	opts := &slog.HandlerOptions{Level: o.Level}
	switch format {
	case "journal":
		surviveJournal()
		w := NewWriter(Socket, o.Stderr)
		return &Log{slog.New(NewHandler(w, o.Identifier, o.Level)), w}, nil
	case "logfmt":
		return &Log{slog.New(tagged{slog.NewTextHandler(o.Stderr, opts)}), nil}, nil
	case "json":
		return &Log{slog.New(tagged{slog.NewJSONHandler(o.Stderr, opts)}), nil}, nil
	}
	return nil, policy.Errorf(policy.CodeConfigInvalid, "journal.open", "%q is no log format", policy.Printable(o.Format)).
		WithHint("Use %s.", Formats)
}

// Lost counts the entries that did not get into the journal.
func (l *Log) Lost() int {
	if l.Journal == nil {
		return 0
	}
	return l.Journal.Lost()
}

// Close sends the last entries.
func (l *Log) Close() error {
	if l.Journal == nil {
		return nil
	}
	return l.Journal.Close()
}

// surviveJournal: standard error is a stream to journald, and a write to it behind
// journald's death would end the process (os/signal, SIGPIPE). Ignoring the signal
// would be inherited by what we start; having it delivered is not.
func surviveJournal() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
}

// tagged adds the diagnostic's code and the event's MESSAGE_ID to records, which the
// journal has as fields.
type tagged struct{ slog.Handler }

func (t tagged) WithAttrs(attrs []slog.Attr) slog.Handler { return tagged{t.Handler.WithAttrs(attrs)} }
func (t tagged) WithGroup(name string) slog.Handler       { return tagged{t.Handler.WithGroup(name)} }

func (t tagged) Handle(ctx context.Context, r slog.Record) error {
	var tags []slog.Attr
	r.Attrs(func(a slog.Attr) bool {
		var d *policy.Diagnostic
		if err, ok := a.Value.Any().(error); ok && errors.As(err, &d) && d != nil {
			tags = append(tags, slog.String(KeyDiagnostic, string(d.Code)))
		}
		if a.Key == KeyEvent {
			if info, ok := policy.DescribeEvent(policy.EventKind(a.Value.String())); ok {
				tags = append(tags, slog.String("message_id", info.MessageID))
			}
		}
		return true
	})
	if len(tags) > 0 {
		r = r.Clone()
		r.AddAttrs(tags...)
	}
	return t.Handler.Handle(ctx, r)
}
