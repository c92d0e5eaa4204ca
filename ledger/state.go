package ledger

import "time"

// State is the union over streams: what is held, by whom, and who lives.
type State struct {
	// Held is ordered by stream and age.
	Held    []Held       `json:"held"`
	Streams []StreamInfo `json:"streams"`
	// Kept are the owners under a keep.
	Kept []string `json:"kept,omitempty"`
}

// Held is a resource with an intent and no release.
type Held struct {
	Resource Resource `json:"resource"`
	// Stream is "<role>/s<NNN>".
	Stream string `json:"stream"`
	// Live says that the process which wrote the intent still owns the stream.
	Live bool `json:"live"`
	// Done says that the act after the intent was completed; without it the
	// resource may exist wholly, partly or not at all.
	Done bool `json:"done"`
	// Kept says that the resource's owner is under a keep.
	Kept bool `json:"kept"`
	// Since is the time of the intent.
	Since time.Time `json:"since"`
}

// Leftovers are the resources of dead writers that nobody keeps.
func (s *State) Leftovers() []Held {
	var out []Held
	for _, h := range s.Held {
		if !h.Live && !h.Kept {
			out = append(out, h)
		}
	}
	return out
}

// StreamInfo describes one stream.
type StreamInfo struct {
	Name     string `json:"name"`
	Live     bool   `json:"live"`
	Segments int    `json:"segments"`
	Records  int    `json:"records"`
	// Torn is the number of bytes of an unfinished write behind the last whole
	// record. They were never acknowledged; the next claim removes them.
	Torn int64 `json:"torn,omitempty"`
	// Break is set by Verify where the chain is broken.
	Break *Break `json:"break,omitempty"`
}

// Break says where a chain stops being one, and why.
type Break struct {
	Stream  string `json:"stream"`
	Segment string `json:"segment"` // file name
	Line    int    `json:"line"`    // from 1; 0 for the segment as a whole
	Offset  int64  `json:"offset"`
	Reason  string `json:"reason"`
}

// Report is Verify's result.
type Report struct {
	OK      bool         `json:"ok"`
	Streams []StreamInfo `json:"streams"`
}
