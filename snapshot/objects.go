package snapshot

import (
	"bytes"
	"crypto/sha1" // #nosec: git's object ids
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// maxTrees bounds the tree objects of an archive together, which are kept in
// memory: a million files need some 60 MB.
const maxTrees = 256 << 20

// maxPaths bounds the bytes of all paths of a tree together, which are kept in
// memory too: nested directories of long names give every file a long one.
func maxPaths(files int64) int64 {
	const honest = 256 // bytes of a path, on average
	return honest * min(max(files, 4096), 1<<40)
}

// TreeEntry is one name in a tree object.
type TreeEntry struct {
	Mode uint32
	Name string
	OID  string // raw bytes
}

const (
	modeType    = 0o170000
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeSymlink = 0o120000
	modeGitlink = 0o160000
)

func (e TreeEntry) isTree() bool { return e.Mode&modeType == modeDir }
func (e TreeEntry) isBlob() bool { t := e.Mode & modeType; return t == modeRegular || t == modeSymlink }

// Graph is a commit's tree as the archive's tree objects have it, checked
// against the commit's id.
type Graph struct {
	Root  string // raw id of the commit's tree
	trees map[string][]TreeEntry
	// Suspicious says that some name needs git's own judgement: it might be
	// ".git" to a file system that folds case or drops code points.
	Suspicious bool
	// Attributes are the raw ids of the .gitattributes files.
	Attributes map[string]bool
}

// planner knows which object comes next.
type planner struct {
	hash   hash.Hash
	head   []byte // what objectHash begins with
	size   int    // of a raw id
	graph  Graph
	next   string // raw id; "" when there is none
	typ    byte
	frames []frame
	blobs  []string
	seen   map[string]bool
	bytes  int64 // of trees
}

type frame struct {
	entries []TreeEntry
	at      int
}

func newPlanner(h Header) *planner {
	p := &planner{hash: sha1.New(), size: oidSize(h.ObjectFormat), seen: make(map[string]bool), typ: tagCommit}
	if p.size == sha256.Size {
		p.hash = sha256.New()
	}
	raw, _ := hex.DecodeString(h.Commit) // checked by parseHeader
	p.next = string(raw)
	p.graph.trees = make(map[string][]TreeEntry)
	p.graph.Attributes = make(map[string]bool)
	return p
}

// objectHash begins the hash of the next object; that of the last one is lost.
func (p *planner) objectHash(size int64) hash.Hash {
	p.hash.Reset()
	p.head = append(p.head[:0], objectType(p.typ)...)
	p.head = append(strconv.AppendInt(append(p.head, ' '), size, 10), 0)
	p.hash.Write(p.head)
	return p.hash
}

func objectType(tag byte) string {
	switch tag {
	case tagCommit:
		return "commit"
	case tagTree:
		return "tree"
	}
	return "blob"
}

// advance takes the content of the object that next named; a blob's is not
// needed.
func (p *planner) advance(content []byte) error {
	switch p.typ {
	case tagCommit:
		tree, ok := commitTree(content)
		raw, err := hex.DecodeString(tree)
		if !ok || err != nil || len(raw) != p.size {
			return invalid("has a commit without a tree")
		}
		p.graph.Root, p.next, p.typ = string(raw), string(raw), tagTree
		p.seen[p.next] = true
		return nil
	case tagTree:
		entries, err := p.parseTree(content)
		if err != nil {
			return err
		}
		p.graph.trees[p.next] = entries
		p.frames = append(p.frames, frame{entries: entries})
		p.nextTree()
		return nil
	}
	p.nextBlob()
	return nil
}

// nextTree goes on in preorder to a tree that has not come yet.
func (p *planner) nextTree() {
	for len(p.frames) > 0 {
		f := &p.frames[len(p.frames)-1]
		if f.at == len(f.entries) {
			p.frames = p.frames[:len(p.frames)-1]
			continue
		}
		e := f.entries[f.at]
		f.at++
		if e.Mode&modeType == modeGitlink || p.seen[e.OID] {
			continue
		}
		p.seen[e.OID] = true
		if e.isTree() {
			p.next = e.OID
			return
		}
		p.blobs = append(p.blobs, e.OID)
	}
	p.typ = tagBlob
	p.nextBlob()
}

func (p *planner) nextBlob() {
	if len(p.blobs) == 0 {
		p.next = ""
		return
	}
	p.next, p.blobs = p.blobs[0], p.blobs[1:]
}

func commitTree(content []byte) (string, bool) {
	line, _, _ := bytes.Cut(content, []byte("\n"))
	tree, ok := strings.CutPrefix(string(line), "tree ")
	return tree, ok
}

// parseTree reads a tree object: mode SP name NUL id, and so on.
func (p *planner) parseTree(b []byte) ([]TreeEntry, error) {
	if p.bytes += int64(len(b)); p.bytes > maxTrees {
		return nil, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot's trees are larger than %d bytes", maxTrees)
	}
	var entries []TreeEntry
	for len(b) > 0 {
		sp := bytes.IndexByte(b, ' ')
		nul := bytes.IndexByte(b, 0)
		if sp < 1 || sp > 7 || nul < sp+2 || len(b) < nul+1+p.size {
			return nil, invalid("has a malformed tree object")
		}
		mode, err := strconv.ParseUint(string(b[:sp]), 8, 32)
		if err != nil {
			return nil, invalid("has a malformed tree object")
		}
		e := TreeEntry{Mode: uint32(mode), Name: string(b[sp+1 : nul]), OID: string(b[nul+1 : nul+1+p.size])}
		b = b[nul+1+p.size:]
		if err := p.checkTreeEntry(e); err != nil {
			return nil, err
		}
		if n := len(entries); n > 0 && sortName(entries[n-1]) >= sortName(e) {
			return nil, invalid("has a tree object that is not sorted")
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// sortName is what git compares: a tree's name ends in a slash.
func sortName(e TreeEntry) string {
	if e.isTree() {
		return e.Name + "/"
	}
	return e.Name
}

func (p *planner) checkTreeEntry(e TreeEntry) error {
	if !e.isTree() && !e.isBlob() && e.Mode&modeType != modeGitlink {
		return invalid("has a tree entry of a type that git does not have").With("name", policy.Printable(e.Name))
	}
	if e.Name == "." || e.Name == ".." || strings.ContainsRune(e.Name, '/') || strings.EqualFold(e.Name, ".git") || len(e.Name) > maxName {
		return invalid("has a tree entry whose name is never unpacked").With("name", policy.Printable(e.Name))
	}
	if suspicious(e.Name) {
		p.graph.Suspicious = true
	}
	if e.Name == ".gitattributes" {
		p.graph.Attributes[e.OID] = true
	}
	return nil
}

// suspicious finds names that git's protectHFS and protectNTFS look closer at.
// It may find too many: git then decides, at the price of its own checkout.
func suspicious(name string) bool {
	if strings.ContainsAny(name, `\:`) {
		return true
	}
	var ascii strings.Builder
	for i := range len(name) {
		if c := name[i]; c < 0x80 && c > ' ' {
			ascii.WriteByte(c)
		}
	}
	s := strings.ToLower(ascii.String())
	if !strings.HasPrefix(s, ".git") {
		return strings.HasPrefix(s, "git~") || strings.HasPrefix(s, "gi7")
	}
	rest := strings.TrimLeft(s[len(".git"):], "abcdefghijklmnopqrstuvwxyz")
	return s != name || (rest != "" && !strings.ContainsAny(rest[:1], "-_.")) || s == ".git" || strings.HasPrefix(s, ".git.")
}

// PlacedFile is where a blob, or a submodule's empty directory, belongs.
type PlacedFile struct {
	Path string
	Mode uint32 // git's
}

// Places lists the tree's files by the raw id of their blob, each in the order
// of the paths, and the submodules. Only what is inside the scope is listed. A
// tree of trees can name more paths than any disk holds, so it stops at most, and
// where the paths are longer than those of so many files are.
func (g *Graph) Places(scope policy.Scope, most int64) (files map[string][]PlacedFile, gitlinks []string, err error) {
	files = make(map[string][]PlacedFile)
	n, bytes := int64(0), int64(0)
	var walk func(prefix string, oid string, depth int) error
	walk = func(prefix, oid string, depth int) error {
		if depth > 2048 {
			return policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot's tree is deeper than 2048 directories")
		}
		for _, e := range g.trees[oid] {
			if n++; n > most {
				return policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot's tree has more than %d files", most)
			}
			path := prefix + e.Name
			if bytes += int64(len(path)); bytes > maxPaths(most) {
				return policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the paths of the snapshot's tree are longer than %d bytes together", maxPaths(most))
			}
			switch {
			case e.isTree():
				if scope.Touches(path) {
					if err := walk(path+"/", e.OID, depth+1); err != nil {
						return err
					}
				}
			case !scope.Holds(path):
			case e.isBlob():
				files[e.OID] = append(files[e.OID], PlacedFile{path, e.Mode})
			default:
				gitlinks = append(gitlinks, path)
			}
		}
		return nil
	}
	err = walk("", g.Root, 0)
	return files, gitlinks, err
}

// HasDir reports whether the tree has the directory.
func (g *Graph) HasDir(dir string) bool {
	oid := g.Root
	for name := range strings.SplitSeq(dir, "/") {
		i := slices.IndexFunc(g.trees[oid], func(e TreeEntry) bool { return e.Name == name && e.isTree() })
		if i < 0 {
			return false
		}
		oid = g.trees[oid][i].OID
	}
	return true
}
