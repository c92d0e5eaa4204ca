package gitcache

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	// Packs are the sizes of the mirror's pack and index files: a truncated or
	// lost one is noticed by stat alone.
	Packs map[string]int64 `json:"packs"`
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

// healthy is the check of the warm path: HEAD is a HEAD and every pack has the
// size it was left with. What only reading can tell is found when git reads.
func (r *repo) healthy() bool {
	s := r.readState()
	return s.Finished > 0 && r.headValid() && r.packsIntact(s)
}

func (r *repo) headValid() bool {
	b, err := readSmall(r.bare("HEAD"), 4096)
	if err != nil {
		return false
	}
	h := strings.TrimSpace(string(b))
	return strings.HasPrefix(h, "ref: refs/") || policy.ValidOID(h)
}

func (r *repo) packsIntact(s state) bool {
	for name, size := range s.Packs {
		if st, err := os.Stat(r.bare("objects/pack", name)); err != nil || st.Size() != size {
			return false
		}
	}
	return isDir(r.bare("refs")) && isDir(r.bare("objects"))
}

// packSizes lists the packs of a git directory with their indexes.
func packSizes(gitDir string) (map[string]int64, error) {
	entries, err := os.ReadDir(filepath.Join(gitDir, "objects/pack"))
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]int64)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "pack-") || (!strings.HasSuffix(e.Name(), ".pack") && !strings.HasSuffix(e.Name(), ".idx")) {
			continue
		}
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sizes[e.Name()] = st.Size()
	}
	return sizes, nil
}

// origin is the record of where a repository comes from. The URL may hold a
// password, so the file has mode 0600 and nothing else repeats it.
type origin struct {
	URL string `json:"url"`
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
	return Source{ID: r.id, URL: o.URL}, nil
}
