package journal

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	sd "github.com/coreos/go-systemd/v22/journal"

	"yoi.dev/yoi-runtime/policy"
)

// The attributes that become fields of their own; all others are words of the message.
// Within a group none does: groups are for what others name.
const (
	KeyEvent      = "event"
	KeyDiagnostic = "diagnostic"
	KeyOperation  = "operation"
	KeyHint       = "hint"
	KeyRuntime    = "runtime"
	KeyWorkspace  = "workspace"
	KeyAllocation = "allocation"
	KeyWorker     = "worker"
)

// handler is a slog.Handler that makes entries.
type handler struct {
	w     *Writer
	level slog.Leveler
	entry Entry  // what WithAttrs has set
	words string // " key=value" for each
	group string // "a.b."
}

// NewHandler logs what is at least level as the program identifier.
func NewHandler(w *Writer, identifier string, level slog.Leveler) slog.Handler {
	return &handler{w: w, level: level, entry: Entry{Identifier: identifier}}
}

func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	for _, a := range attrs {
		n.add(n.group, a)
	}
	return &n
}

func (h *handler) WithGroup(name string) slog.Handler {
	n := *h
	if name != "" {
		n.group += name + "."
	}
	return &n
}

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	n := *h
	n.entry.Priority = priority(r.Level)
	r.Attrs(func(a slog.Attr) bool {
		n.add(n.group, a)
		return true
	})
	n.entry.Message = policy.Printable(r.Message) + n.words
	h.w.Put(n.entry)
	return nil
}

func priority(l slog.Level) sd.Priority {
	switch {
	case l >= slog.LevelError:
		return sd.PriErr
	case l >= slog.LevelWarn:
		return sd.PriWarning
	case l >= slog.LevelInfo:
		return sd.PriInfo
	}
	return sd.PriDebug
}

// add puts an attribute into its field, or among the words.
func (h *handler) add(group string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, m := range v.Group() {
			h.add(group, m)
		}
		return
	}
	if a.Equal(slog.Attr{}) {
		return
	}
	if group == "" && h.set(a.Key, v) {
		return
	}
	if len(h.words) < maxMessage {
		h.words += " " + word(cut(group+a.Key, maxText), true) + "=" + word(cut(v.String(), maxMessage), false)
	}
}

// set fills the field that belongs to a key. An error stays among the words too.
func (h *handler) set(key string, v slog.Value) bool {
	s := v.String()
	switch key {
	case KeyEvent:
		info, ok := policy.DescribeEvent(policy.EventKind(s))
		h.entry.Event = info.Kind
		return ok
	case KeyRuntime:
		h.entry.Runtime = policy.RuntimeID(s)
	case KeyWorkspace:
		h.entry.Workspace = policy.WorkspaceID(s)
	case KeyAllocation:
		h.entry.Allocation = policy.AllocationID(s)
	case KeyWorker:
		h.entry.Worker = policy.WorkerID(s)
	case KeyDiagnostic:
		h.entry.Diagnostic = policy.Code(s)
	case KeyOperation:
		h.entry.Operation = s
	case KeyHint:
		h.entry.Hint = s
	default:
		if err, ok := v.Any().(error); ok {
			h.diagnose(err)
		}
		return false
	}
	return policy.ValidID(s) || key == KeyHint || key == KeyOperation
}

// diagnose takes what a diagnostic in an error's chain says.
func (h *handler) diagnose(err error) {
	var d *policy.Diagnostic
	if !errors.As(err, &d) || d == nil {
		return
	}
	h.entry.Diagnostic, h.entry.Operation, h.entry.Hint = d.Code, d.Op, d.Hint
}

// word is logfmt: quoted where it would not be one printable word. A key never is, so
// that what reads the line finds no more keys than there are.
func word(s string, key bool) string {
	plain := func(r rune) bool {
		return unicode.IsPrint(r) && r != ' ' && r != '"' && r != '=' && r != utf8.RuneError
	}
	if key {
		s = strings.Map(func(r rune) rune {
			if plain(r) {
				return r
			}
			return '_'
		}, s)
		if s == "" {
			return "_"
		}
		return s
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}
