package ledger

import "time"

// RecordKind is the "k" of a record.
type RecordKind string

const (
	RecordHead     RecordKind = "head"
	RecordCarry    RecordKind = "carry"
	RecordClaim    RecordKind = "claim"
	RecordIntent   RecordKind = "intent"
	RecordDone     RecordKind = "done"
	RecordReleased RecordKind = "released"
	RecordKeep     RecordKind = "keep"
	RecordUnkeep   RecordKind = "unkeep"
	RecordEvent    RecordKind = "event"
	RecordClose    RecordKind = "close"
	RecordSeal     RecordKind = "seal"
)

// Record is one line of a segment; doc.go draws the format.
type Record struct {
	Seq     uint64     `json:"seq"`
	Time    time.Time  `json:"t"`
	Durable uint64     `json:"d"`
	Kind    RecordKind `json:"k"`
	body
	// Stream and Segment say where the record was read.
	Stream  string `json:"-"`
	Segment string `json:"-"`
}

type body struct {
	Resource *Resource         `json:"r,omitempty"`
	ID       string            `json:"id,omitempty"`
	IDs      []string          `json:"ids,omitempty"`
	Identity *Identity         `json:"identity,omitempty"`
	Owner    string            `json:"owner,omitempty"`
	Event    string            `json:"event,omitempty"`
	Fields   map[string]string `json:"fields,omitempty"`
	Session  uint64            `json:"session,omitempty"`
}

type disk interface{}
