package runtime

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// journal writes the repository cache's resources into the cleanup ledger. The
// cache names a resource by kind and path; the ledger by an id, which is
// derived from both and the owner so that a later process can release it.
type journal Runtime

var cacheIDs sync.Map // cacheKey → ledger id, of what this process intended

type cacheKey struct {
	root              string
	kind, owner, path string
}

func (j *journal) key(r gitcache.Resource) cacheKey {
	return cacheKey{j.root.Path, r.Kind, r.Owner, r.Path}
}

func (j *journal) Intend(ctx context.Context, rs ...gitcache.Resource) error {
	records := cacheRecords(rs)
	if err := j.ledger.Intend(ctx, records...); err != nil {
		return err
	}
	j.intended(rs, records)
	return nil
}

func (j *journal) Later(ctx context.Context, rs ...gitcache.Resource) (func() error, error) {
	records := cacheRecords(rs)
	wait, err := j.ledger.Later(ctx, records...)
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := wait(); err != nil {
			return err
		}
		j.intended(rs, records)
		return nil
	}, nil
}

func cacheRecords(rs []gitcache.Resource) []ledger.Resource {
	records := make([]ledger.Resource, len(rs))
	for i, r := range rs {
		records[i] = ledger.Resource{ID: ledger.NewResourceID(), Kind: ledger.Kind(r.Kind), Owner: r.Owner, Path: r.Path, Attrs: r.Attrs}
	}
	return records
}

// intended remembers the ids for Release.
func (j *journal) intended(rs []gitcache.Resource, records []ledger.Resource) {
	for i, r := range rs {
		cacheIDs.Store(j.key(r), records[i].ID)
	}
}

func (j *journal) Done(r gitcache.Resource, dev, ino uint64) error {
	id, ok := cacheIDs.Load(j.key(r))
	if !ok {
		return nil // intended by an earlier process; its record stands without identity
	}
	return j.ledger.Done(id.(string), ledger.Identity{Dev: dev, Ino: ino})
}

// adopt lets Release find the record of an earlier process without a scan.
func (j *journal) adopt(r ledger.Resource) {
	cacheIDs.Store(cacheKey{j.root.Path, string(r.Kind), r.Owner, r.Path}, r.ID)
}

// Release ends a resource, also one that another process intended: then the
// record is looked up in the streams.
func (j *journal) Release(r gitcache.Resource) error {
	if id, ok := cacheIDs.LoadAndDelete(j.key(r)); ok {
		return j.ledger.Release(id.(string))
	}
	ctx := context.Background()
	if err := j.ledger.Sync(ctx); err != nil {
		return err
	}
	state, err := ledger.Scan(ctx, j.ledgerDir)
	if err != nil {
		return err
	}
	var ids []string
	for _, h := range state.Held {
		if h.Resource.Kind == ledger.Kind(r.Kind) && h.Resource.Owner == r.Owner && h.Resource.Path == r.Path {
			ids = append(ids, h.Resource.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return j.ledger.Release(ids...)
}

// top adapts the copy-on-write layer's functions, which take a parent's
// descriptor, to the cache's, which name directories below the Runtime root.
func (r *Runtime) top(f func(*os.File, string) error) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		rel := dir
		if filepath.IsAbs(dir) {
			var ok bool
			if rel, ok = strings.CutPrefix(dir, r.root.Path+"/"); !ok {
				return policy.Errorf(policy.CodeInternal, "runtime.tree", "a tree lies outside the Runtime root")
			}
		}
		parent, err := r.root.OpenDir(path.Dir(rel))
		if err != nil {
			return err
		}
		defer parent.Close()
		return f(parent, path.Base(rel))
	}
}
