package gitcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		childMain()
		return
	}
	testenv.Main(m)
}

// journal checks the order of every record, and knows what is still held.
type journal struct {
	mu   sync.Mutex
	held map[string]Resource
	seen []string
	// syncs counts what costs an fsync in the ledger.
	syncs int
}

func (j *journal) Intend(_ context.Context, rs ...Resource) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.syncs++
	for _, r := range rs {
		if filepath.IsAbs(r.Path) || r.Owner == "" {
			return fmt.Errorf("resource %+v", r)
		}
		j.held[r.Kind+" "+r.Path] = r
		j.seen = append(j.seen, r.Kind)
	}
	return nil
}

func (j *journal) Later(ctx context.Context, rs ...Resource) (func() error, error) {
	return func() error { return j.Intend(ctx, rs...) }, nil
}

func (j *journal) Done(r Resource, _, _ uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.held[r.Kind+" "+r.Path]; !ok {
		return fmt.Errorf("done without an intent: %+v", r)
	}
	return nil
}

func (j *journal) Release(r Resource) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.held, r.Kind+" "+r.Path)
	return nil
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.held))
}

type fixture struct {
	*Cache
	t       *testing.T
	journal *journal
	root    string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	j := &journal{held: map[string]Resource{}}
	c, err := Open(Options{Root: root, Ledger: j})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{Cache: c, t: t, journal: j, root: root}
}

func (f *fixture) source(dir string) Source {
	f.t.Helper()
	src, err := ParseSource(dir, "/")
	if err != nil {
		f.t.Fatal(err)
	}
	return src
}

func (f *fixture) resolve(src Source, sel string) policy.RepositoryPoint {
	f.t.Helper()
	s, err := policy.ParseSelector(sel)
	if err != nil {
		f.t.Fatal(err)
	}
	p, _, err := f.Resolve(f.t.Context(), src, s, ResolveOptions{})
	if err != nil {
		f.t.Fatalf("resolve %s: %v", sel, err)
	}
	return p
}

func (f *fixture) pristine(p policy.RepositoryPoint) (*Pristine, []policy.Diagnostic) {
	f.t.Helper()
	tree, warnings, err := f.Pristine(f.t.Context(), p)
	if err != nil {
		f.t.Fatalf("pristine: %v", err)
	}
	f.t.Cleanup(func() { tree.Close() })
	return tree, warnings
}

func (f *fixture) path(rel string) string { return filepath.Join(f.root, rel) }

// workspace copies a pristine tree as a strategy would, patches its index and
// writes its git directory.
func (f *fixture) workspace(p policy.RepositoryPoint, o GitDirOptions) string {
	f.t.Helper()
	tree, _ := f.pristine(p)
	dir := filepath.Join(f.t.TempDir(), "ws")
	run(f.t, "cp", "-a", f.path(tree.RelPath), dir)
	f.ready(dir, p, o)
	return dir
}

func (f *fixture) ready(dir string, p policy.RepositoryPoint, o GitDirOptions) {
	f.t.Helper()
	top, err := os.Open(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	defer top.Close()
	if err := f.PatchIndex(f.t.Context(), top, nil); err != nil {
		f.t.Fatal(err)
	}
	if err := f.WriteGitDir(f.t.Context(), top, p, o); err != nil {
		f.t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code policy.Code) *policy.Diagnostic {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("error %v, want %s", err, code)
	}
	d := policy.AsDiagnostic(err)
	b, jsonErr := json.Marshal(d)
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	if d.Hint == "" || strings.Contains(string(b), "/tmp/") || strings.Contains(string(b), "repository-cache") {
		t.Errorf("unsafe or helpless diagnostic: %s", b)
	}
	return d
}

func hasCode(ds []policy.Diagnostic, code policy.Code) bool {
	return slices.ContainsFunc(ds, func(d policy.Diagnostic) bool { return d.Code == code && d.Severity == policy.SeverityWarning })
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
