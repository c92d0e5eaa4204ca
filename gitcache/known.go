package gitcache

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Known lists the objects by whose ids a holder's workspace can have anything of
// the mirror without having made it: the commits that it has pinned and whatever
// its private git directory was given refs to. Sorted.
func (c *Cache) Known(id policy.RepositoryID, holder string) ([]string, error) {
	const op = "gitcache.known"
	r, err := c.repo(id)
	if err == nil {
		err = policy.CheckID("holder", holder)
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.path("holds", holder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, diskError(op, "the pins cannot be read", err)
	}
	known := make(map[string]bool)
	for _, e := range entries {
		if !policy.ValidOID(e.Name()) {
			continue
		}
		known[e.Name()] = true
		b, err := os.ReadFile(r.path("holds", holder, e.Name()))
		if err != nil {
			return nil, diskError(op, "a pin cannot be read", err)
		}
		generation, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // torn by a crash: no listing has that number
		listing, err := os.ReadFile(r.listingPath(generation))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, diskError(op, "a refs listing cannot be read", err)
		}
		listedObjects(listing, known)
	}
	return slices.Sorted(maps.Keys(known)), nil
}
