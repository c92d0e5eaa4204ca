package gitcache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

// artifactFilter says which entries of a working tree come along: of the scope all
// but git directories, at any depth, and untracked ones that the policy leaves out.
type artifactFilter struct {
	source *sourceDir
	scope  *cone
	policy policy.Artifacts
	// tracked are files, and submodules; parents the directories that they are in.
	tracked, parents map[string]bool
	// whole are nested repositories of which it is not known what they track.
	whole map[string]bool
	// inside remembers which directories lie in one that is left out.
	inside map[string]bool

	seen     map[string]bool // what was left out, or warned about, in an earlier round
	excluded []string
	count    int
	warnings []policy.Diagnostic
}

// newArtifactFilter takes as tracked what the source's index has, or its HEAD.
func newArtifactFilter(d *sourceDir, s policy.Scope, p policy.Artifacts, tracked []string, head *index.Index) *artifactFilter {
	f := &artifactFilter{
		source: d, scope: newCone(s), policy: p, tracked: make(map[string]bool, len(tracked)), parents: make(map[string]bool), whole: make(map[string]bool),
		inside: make(map[string]bool), seen: make(map[string]bool),
	}
	for _, name := range tracked {
		f.track(name)
	}
	for i := range head.Len() {
		f.track(string(head.Entry(i).Path))
	}
	return f
}

func (f *artifactFilter) track(name string) {
	if f.tracked[name] {
		return
	}
	f.tracked[name] = true
	for dir := parent(name); dir != "" && !f.parents[dir]; dir = parent(dir) {
		f.parents[dir] = true
	}
}

func parent(name string) string {
	return name[:max(strings.LastIndexByte(name, '/'), 0)]
}

// directory is CopyLive's question about one directory.
func (f *artifactFilter) directory(dir string) func(name string, isDir bool) bool {
	if dir != "" {
		f.nested(dir)
	}
	inside, whole := f.isInside(dir), f.isWhole(dir)
	prefix := dir
	if dir != "" {
		prefix += "/"
	}
	return func(name string, isDir bool) bool {
		rel := prefix + name
		switch {
		case name == ".git", isDir && !f.scope.enters(rel), !isDir && !f.scope.has(rel):
			return false
		case f.tracked[rel], isDir && f.parents[rel]:
			return true
		case whole:
			return true
		case inside:
			return false
		case f.policy.Excludes(rel, isDir):
			f.leftOut(rel, isDir)
			return false
		}
		return true
	}
}

func (f *artifactFilter) isWhole(dir string) bool {
	for ; len(f.whole) > 0 && dir != ""; dir = parent(dir) {
		if f.whole[dir] {
			return true
		}
	}
	return false
}

// isInside reports whether dir, or one that it lies in, is left out by name. It
// is entered all the same for what is tracked in it.
func (f *artifactFilter) isInside(dir string) bool {
	if dir == "" {
		return false
	}
	in, known := f.inside[dir]
	if !known {
		in = f.isInside(parent(dir)) || (!f.tracked[dir] && f.policy.Excludes(dir, true))
		f.inside[dir] = in
	}
	return in
}

func (f *artifactFilter) leftOut(rel string, isDir bool) {
	if isDir {
		rel += "/"
	}
	if f.seen[rel] {
		return
	}
	f.seen[rel] = true
	if f.count++; len(f.excluded) < maxListed {
		f.excluded = append(f.excluded, shortPath(rel))
	}
}

// nested deals with a repository inside the working tree, a submodule or not:
// its files come along, its git directory does not. What its own index tracks is
// never left out; where that cannot be read, nothing is.
func (f *artifactFilter) nested(dir string) {
	at := filepath.Join(f.source.top, dir)
	if _, err := os.Lstat(filepath.Join(at, ".git")); err != nil || f.seen[dir+"/.git"] {
		return
	}
	f.seen[dir+"/.git"] = true
	if len(f.warnings) < maxListed {
		f.warnings = append(f.warnings, *policy.Warnf(policy.CodeNestedRepository, opSnapshot, "a repository lies inside the working tree: its files come along, its git directory does not").
			With("path", dir))
	}
	names, err := trackedNames(at)
	if err != nil {
		f.whole[dir] = true
	}
	for _, name := range names {
		f.track(dir + "/" + name)
	}
}

// trackedNames reads a repository's index as it is: git does not run in one that
// lies inside another.
func trackedNames(dir string) ([]string, error) {
	d, err := discover(dir)
	if err != nil {
		return nil, err
	}
	b, err := readSmall(filepath.Join(d.gitDir, "index"), 1<<31)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing was ever added
	}
	if err != nil {
		return nil, err
	}
	x, err := index.Parse(b, 0)
	if err != nil {
		return nil, err
	}
	names := make([]string, x.Len())
	for i := range names {
		names[i] = string(x.Entry(i).Path)
	}
	return names, nil
}
