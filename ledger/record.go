package ledger

import (
	"time"
)

// RecordKind is the "k" of a record.
type RecordKind string

const (
	RecordHead     RecordKind = "head"     // first line of a segment
	RecordCarry    RecordKind = "carry"    // state brought over from the segment before
	RecordClaim    RecordKind = "claim"    // a process took the stream over
	RecordIntent   RecordKind = "intent"   // a resource is about to be made
	RecordDone     RecordKind = "done"     // it was made, and this is its identity
	RecordReleased RecordKind = "released" // it is gone
	RecordKeep     RecordKind = "keep"     // its owner is wanted after the writer's death
	RecordUnkeep   RecordKind = "unkeep"   // … no longer
	RecordEvent    RecordKind = "event"    // a line of a timeline, without effect on the state
	RecordClose    RecordKind = "close"    // the writer went away in good order
	RecordSeal     RecordKind = "seal"     // last line of a segment that has a successor
)

// Record is one line of a segment; doc.go draws the format. Which of the body's
// fields are set depends on Kind.
type Record struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"t"`
	// Durable is the last sequence number that was known to be on disk when
	// this record was written: what tells a torn write from damage.
	Durable uint64     `json:"d"`
	Kind    RecordKind `json:"k"`
	Body
	// Stream and Segment say where Records read it.
	Stream  string `json:"-"`
	Segment string `json:"-"`
}

// Body is the part of a record that depends on its kind.
type Body struct {
	Resource *Resource `json:"r,omitempty"`   // intent; carry of a resource
	ID       string    `json:"id,omitempty"`  // done, keep; carry of a keep or a foreign done
	IDs      []string  `json:"ids,omitempty"` // released, unkeep; carry of tombstones
	Identity *Identity `json:"identity,omitempty"`
	Done     bool      `json:"done,omitempty"`  // carry of a resource
	Since    time.Time `json:"since,omitzero"`  // carry of a resource: the intent's time
	Owner    string    `json:"owner,omitempty"` // keep, unkeep, event; carry of a keep
	Event    string    `json:"event,omitempty"`

	Fields  map[string]string `json:"fields,omitempty"`
	Session uint64            `json:"session,omitempty"` // claim, head; carry of a resource

	// head only
	Format  int    `json:"format,omitempty"`
	Name    string `json:"stream,omitempty"`
	Number  uint64 `json:"segment,omitempty"`
	Prev    string `json:"prev,omitempty"`
	Carried int    `json:"carried,omitempty"`
}

// formatVersion is written into every head. A reader refuses a higher one.
const formatVersion = 1
