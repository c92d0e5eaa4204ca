package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	sd "github.com/coreos/go-systemd/v22/journal"

	"yoi.dev/yoi-runtime/policy"
)

// Entry is one entry of the journal. Every field but Message is the empty string, or
// what its name says: see encode.
type Entry struct {
	Message    string
	Priority   sd.Priority
	Identifier string // SYSLOG_IDENTIFIER: the program

	Event      policy.EventKind
	Diagnostic policy.Code
	Operation  string
	Hint       string
	Runtime    policy.RuntimeID
	Workspace  policy.WorkspaceID
	Allocation policy.AllocationID
	Worker     policy.WorkerID
	Stream     string // of a Worker's output: stdout or stderr
}

// Info is the priority of what is no trouble.
const Info = sd.PriInfo

// maxMessage is journald's own bound of a line (LineMax=); an entry is below every
// socket's send buffer with it, so that none has to travel as a file.
const maxMessage = 48 << 10

// fields are all that an entry can have, in the order in which they are written.
func (e *Entry) fields() []field {
	fs := []field{
		{"MESSAGE", cut(e.Message, maxMessage)},
		{"PRIORITY", strconv.Itoa(int(e.Priority & 7))},
		{"SYSLOG_IDENTIFIER", text(e.Identifier)},
		{"MESSAGE_ID", e.messageID()},
		{"YOI_EVENT", id(string(e.Event))},
		{"YOI_DIAGNOSTIC", id(string(e.Diagnostic))},
		{"YOI_OPERATION", text(e.Operation)},
		{"YOI_HINT", text(e.Hint)},
		{"YOI_RUNTIME_ID", id(string(e.Runtime))},
		{"YOI_WORKSPACE_ID", id(string(e.Workspace))},
		{"YOI_ALLOCATION_ID", id(string(e.Allocation))},
		{"YOI_WORKER_ID", id(string(e.Worker))},
		{"YOI_STREAM", id(e.Stream)},
	}
	return fs
}

type field struct{ name, value string }

// messageID is that of the event, or of diagnostics if there is none.
func (e *Entry) messageID() string {
	kind := e.Event
	if kind == "" && e.Diagnostic != "" {
		kind = policy.EventDiagnostic
	}
	info, _ := policy.DescribeEvent(kind)
	return info.MessageID
}

// id is s, or nothing where s is no id: an id is what people search for, and half a
// one would be a lie.
func id(s string) string {
	if !policy.ValidID(s) {
		return ""
	}
	return s
}

const maxText = 1 << 10

// text is one line of printable characters.
func text(s string) string { return policy.Printable(cut(s, maxText)) }

// cut is the beginning of s, which says how much is missing.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const note = " … (%d bytes more)"
	n := most - len(note) - 20
	for n > 0 && n > most-len(note)-20-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + fmt.Sprintf(note, len(s)-n)
}

// encode is the entry in the native protocol: NAME=VALUE, or where the value has a
// newline NAME, its length in eight bytes and the value. Fields without a value are
// left out.
func (e *Entry) encode() []byte {
	var b bytes.Buffer
	for _, f := range e.fields() {
		switch {
		case f.value == "" && f.name != "MESSAGE":
		case strings.ContainsRune(f.value, '\n'):
			b.WriteString(f.name + "\n")
			_ = binary.Write(&b, binary.LittleEndian, uint64(len(f.value))) // a Buffer takes all
			b.WriteString(f.value + "\n")
		default:
			b.WriteString(f.name + "=" + f.value + "\n")
		}
	}
	return b.Bytes()
}
