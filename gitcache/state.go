package gitcache

import (
	"encoding/json"
	"os"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// state is what is known of a mirror without asking git.
type state struct {
	// Started counts fetches begun, Finished is the number of the last that
	// succeeded. Started > Finished under the lock means that a writer died.
	Started   int64     `json:"started"`
	Finished  int64     `json:"finished"`
	FetchedAt time.Time `json:"fetched_at"`
	Refs      int       `json:"refs"`
	Listing   int64     `json:"listing"` // generation of the current refs listing
	Head      string    `json:"head"`    // the ref that the source's HEAD names, if it does
	// Packs are the mirror's pack and index files that git has written or
	// verified: a truncated, lost or replaced one is noticed by stat alone. None
	// means that nothing is known of them yet.
	Packs map[string]fileID `json:"packs"`
}

func (r *repo) readState() state {
	var s state
	if b, err := os.ReadFile(r.path("state.json")); err == nil {
		_ = json.Unmarshal(b, &s) // a torn file counts as no state: a fetch writes it anew
	}
	return s
}

func (r *repo) writeState(s state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return writeFile(r.path("state.json"), b, 0o600, true)
}

// healthy is the check of the warm path: HEAD is a HEAD and every pack is the
// file that was verified. What only reading can tell is found when git reads.
func (r *repo) healthy() bool {
	s := r.readState()
	intact, same := r.lookAtPacks(s)
	return s.Finished > 0 && len(s.Packs) > 0 && r.headValid() && intact && same
}

func (r *repo) headValid() bool {
	b, err := readSmall(r.bare("HEAD"), 4096)
	if err != nil {
		return false
	}
	h := strings.TrimSpace(string(b))
	return strings.HasPrefix(h, "ref: refs/") || policy.ValidOID(h)
}

// origin is the record of where a repository comes from. The URL may hold a
// password, so the file has mode 0600 and nothing else repeats it.
type origin struct {
	URL    string              `json:"url"`
	Filter policy.ObjectFilter `json:"filter,omitempty"`
}

func (r *repo) readOrigin() (Source, error) {
	var o origin
	b, err := os.ReadFile(r.path("source.json"))
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil || o.URL == "" {
		return Source{}, policy.Errorf(policy.CodeRepositoryUnknown, "gitcache.repository", "the repository %s is not in the cache", r.id).Because(err)
	}
	return Source{ID: r.id, URL: o.URL, Filter: o.Filter}, nil
}
