package toolroot

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const op = "policy.tools"

// Link is a symbolic link of the host's.
type Link struct{ Path, To string }

// Closure is everything that some tools need to exist, at the paths that the host has
// it at. All are sorted; nothing lies inside one of Trees but Trees' own content.
type Closure struct {
	Files []string
	Trees []string
	Links []Link
	// Programs are the paths of the tools themselves, by name.
	Programs map[string]string
	// Digest is "sha256:…" of the paths, sizes and modification times.
	Digest string
	// Stamps are of everything that was looked at.
	Stamps []stamp
}

// maxFiles bounds a closure: each file is a mount of every launch.
const maxFiles = 1500

// Resolve finds the closure of a policy's tools on this host.
func Resolve(tools []string) (*Closure, error) { return host{}.closure(tools) }

func (h host) closure(tools []string) (*Closure, error) {
	r := &resolver{
		host: h, dirs: h.libraryDirs(), programs: make(map[string]string),
		files: make(map[string]bool), trees: make(map[string]bool), links: make(map[string]string), watched: make(map[string]bool),
		resolved: make(map[string]resolution), kinds: make(map[string]kind),
	}
	for _, d := range slices.Concat(r.dirs, searchPath, []string{"/etc/ld.so.conf", "/etc/ld.so.cache"}) {
		r.watched[d] = true
	}
	for _, t := range tools {
		if err := r.tool(t); err != nil {
			return nil, err
		}
	}
	if err := r.entry(always); err != nil {
		return nil, err
	}
	if len(r.files) > maxFiles {
		return nil, policy.Errorf(policy.CodePolicyInvalid, op, "the tools need more than %d files", maxFiles)
	}
	return r.finish()
}

type resolver struct {
	host
	dirs     []string
	programs map[string]string
	files    map[string]bool
	trees    map[string]bool
	links    map[string]string
	watched  map[string]bool
	// resolved and kinds are what was found out already.
	resolved map[string]resolution
	kinds    map[string]kind
}

type resolution struct {
	real  string
	links []Link
	info  fs.FileInfo
	err   error
}

// resolve is the host's, once for each path.
func (r *resolver) resolve(p string) (string, []Link, fs.FileInfo, error) {
	got, ok := r.resolved[p]
	if !ok {
		got.real, got.links, got.info, got.err = r.host.resolve(p)
		r.resolved[p] = got
	}
	return got.real, got.links, got.info, got.err
}

func unknown(tool, format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodeToolUnknown, op, format, args...).With("tool", tool)
}

// tool adds what one name of a policy stands for.
func (r *resolver) tool(name string) error {
	if members, ok := groups[name]; ok {
		found := false
		for _, m := range members {
			err := r.program(m)
			if err != nil && !errors.Is(err, policy.CodeToolUnknown) {
				return err
			}
			found = found || err == nil
		}
		if !found {
			return unknown(name, "this host has none of %s", name)
		}
		return nil
	}
	if strings.HasPrefix(name, "/") {
		return r.path(name)
	}
	return r.program(name)
}

// program looks a name up where the sandbox will.
func (r *resolver) program(name string) error {
	if _, done := r.programs[name]; done {
		return nil
	}
	at, err := r.lookup(name)
	if err != nil {
		return err
	}
	r.programs[name] = at
	if err := r.file(at, name); err != nil {
		return err
	}
	for _, e := range entriesOf(name) {
		if err := r.entry(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) lookup(name string) (string, error) {
	var outside error
	for _, dir := range searchPath {
		_, _, info, err := r.resolve(dir + "/" + name)
		switch {
		case errors.Is(err, errOutside):
			outside = err
		case err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0:
			return dir + "/" + name, nil
		}
	}
	if outside != nil {
		return "", unknown(name, "%s is a link out of the system's directories", policy.Printable(name)).Because(outside)
	}
	return "", unknown(name, "this host has no program %s", policy.Printable(name))
}

// entry adds what the table says of a program.
func (r *resolver) entry(e entry) error {
	for _, w := range e.with {
		if err := r.program(w); err != nil && !errors.Is(err, policy.CodeToolUnknown) {
			return err
		}
	}
	for _, pattern := range e.trees {
		for _, t := range r.glob(pattern) {
			if err := r.tree(t, slices.ContainsFunc(e.scan, func(s string) bool { ok, _ := path.Match(s, t); return ok })); err != nil {
				return err
			}
		}
	}
	for _, pattern := range e.files {
		for _, f := range r.glob(pattern) {
			if err := r.file(f, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// path adds what a policy names by its path: a file with what it loads, or a
// directory as it is.
func (r *resolver) path(p string) error {
	real, _, info, err := r.resolve(p)
	switch {
	case errors.Is(err, errOutside) || err == nil && !inside(real, systemDirs):
		return unknown(p, "%s does not lie in the system's directories", policy.Printable(p)).Because(err)
	case err != nil:
		return unknown(p, "this host has no %s", policy.Printable(p)).Because(err)
	case info.IsDir() && (slices.Contains(systemDirs, real) || slices.Contains(searchPath, real)):
		return unknown(p, "%s is a whole system directory", policy.Printable(p)).WithHint("Leave tools out of the policy, and take the root profile system.")
	case info.IsDir():
		return r.tree(p, false)
	case !info.Mode().IsRegular():
		return unknown(p, "%s is neither a file nor a directory", policy.Printable(p))
	}
	r.programs[p] = p
	return r.file(p, p)
}

// take records the way to p and returns what is there.
func (r *resolver) take(p string) (string, fs.FileInfo, error) {
	real, links, info, err := r.resolve(p)
	if err != nil {
		return "", nil, err
	}
	if !inside(real, systemDirs) && !strings.HasPrefix(real, "/etc/java-") {
		return "", nil, &fs.PathError{Op: "open", Path: p, Err: errOutside}
	}
	for _, l := range links {
		r.links[l.Path] = l.To
	}
	return real, info, nil
}

// tree adds a directory, and with scan the libraries that its programs load.
func (r *resolver) tree(p string, scan bool) error {
	real, info, err := r.take(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errOutside) {
		return nil // a link of the table's patterns that leads nowhere, or elsewhere
	}
	if err != nil {
		return unknown(p, "%s cannot be read", policy.Printable(p)).Because(err)
	}
	if !info.IsDir() {
		return r.file(p, p)
	}
	if r.trees[real] {
		return nil
	}
	r.trees[real] = true
	r.watched[real] = true
	if !scan {
		return nil
	}
	return r.scan(real, 0)
}

// maxScanned bounds the depth of a tree that is looked through.
const maxScanned = 32

func (r *resolver) scan(dir string, depth int) error {
	r.watched[dir] = true
	entries, err := os.ReadDir(r.prefix + dir)
	if err != nil || depth > maxScanned {
		return nil // the program may do without: the sandbox has less, not more
	}
	for _, e := range entries {
		p := dir + "/" + e.Name()
		if e.IsDir() {
			if err := r.scan(p, depth+1); err != nil {
				return err
			}
			continue
		}
		if !e.Type().IsRegular() {
			continue
		}
		library := strings.HasSuffix(p, ".so") || strings.Contains(path.Base(p), ".so.")
		if info, err := e.Info(); !library && (err != nil || info.Mode()&0o111 == 0) {
			continue
		}
		f, err := r.open(p)
		if err != nil {
			continue
		}
		err = r.elf(f, p, "", nil)
		f.Close()
		if err != nil && !errors.Is(err, policy.CodeToolUnknown) {
			return err
		}
	}
	return nil
}

// file adds a file and all that it loads.
func (r *resolver) file(p, tool string) error { return r.fileFor(p, tool, nil) }

func (r *resolver) fileFor(p, tool string, rpath []string) error {
	real, info, err := r.take(p)
	if err != nil {
		return unknown(tool, "%s needs a file that cannot be read", policy.Printable(tool)).Because(err)
	}
	if info.IsDir() || r.files[real] {
		return nil
	}
	if len(r.files) > maxFiles {
		return nil // refused in the end
	}
	r.files[real] = true
	return r.loads(real, tool, rpath)
}

// maxShebang is the kernel's BINPRM_BUF_SIZE.
const maxShebang = 256

// loads adds what the file at a canonical path says that it loads.
func (r *resolver) loads(p, tool string, rpath []string) error {
	f, err := r.open(p)
	if err != nil {
		return unknown(tool, "%s needs a file that cannot be read", policy.Printable(tool)).Because(err)
	}
	defer f.Close()
	head := make([]byte, maxShebang)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return unknown(tool, "%s needs a file that cannot be read", policy.Printable(tool)).Because(err)
	}
	switch head = head[:n]; {
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return r.elf(f, p, tool, rpath)
	case bytes.HasPrefix(head, []byte("#!")):
		return r.script(head[2:], tool)
	}
	return nil
}

// script adds a script's interpreter; that of env(1) is its first argument that is
// neither an option nor a variable.
func (r *resolver) script(line []byte, tool string) error {
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	words := strings.Fields(string(line))
	if len(words) == 0 || !strings.HasPrefix(words[0], "/") {
		return nil // the kernel would not run it either
	}
	if err := r.file(words[0], tool); err != nil {
		return err
	}
	name := path.Base(words[0])
	if name == "env" {
		name = ""
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
				name = path.Base(w)
				break
			}
		}
	}
	if !policy.ValidTool(name) {
		return nil
	}
	if err := r.program(name); err != nil && !errors.Is(err, policy.CodeToolUnknown) {
		return err
	}
	return nil
}

// maxNeeded bounds the libraries of one file.
const maxNeeded = 512

// elf adds an ELF file's interpreter and libraries.
func (r *resolver) elf(f *os.File, p, tool string, inherited []string) error {
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || string(magic[:]) != elf.ELFMAG {
		return nil // a script of a tree: the table says what it needs
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return nil // the kernel would not run it either
	}
	for _, prog := range e.Progs {
		if prog.Type != elf.PT_INTERP || prog.Filesz > 4096 {
			continue
		}
		b := make([]byte, prog.Filesz)
		if _, err := prog.ReadAt(b, 0); err != nil {
			continue
		}
		if err := r.file(string(bytes.TrimRight(b, "\x00")), tool); err != nil {
			return err
		}
	}
	needed, err := e.DynString(elf.DT_NEEDED)
	if err != nil || len(needed) > maxNeeded {
		return nil
	}
	rpath, runpath := r.expand(e, elf.DT_RPATH, p), r.expand(e, elf.DT_RUNPATH, p)
	if len(runpath) > 0 {
		rpath = nil // ld.so(8): DT_RPATH is for those without DT_RUNPATH
	} else {
		rpath = append(rpath, inherited...)
	}
	search := slices.Concat(rpath, runpath, r.dirs)
	for _, lib := range needed {
		found := false
		for _, candidate := range candidates(lib, search) {
			real, _, info, err := r.resolve(candidate)
			if err != nil || !info.Mode().IsRegular() || r.kind(real) != (kind{e.Class, e.Machine}) {
				continue
			}
			if err := r.fileFor(candidate, tool, rpath); err != nil {
				return err
			}
			found = true
			break
		}
		if !found {
			return unknown(tool, "%s needs the library %s, which this host does not have in its system directories", policy.Printable(tool), policy.Printable(lib))
		}
	}
	return nil
}

func candidates(lib string, search []string) []string {
	if strings.Contains(lib, "/") {
		if path.IsAbs(lib) {
			return []string{lib}
		}
		return nil // relative to the working directory: nothing of the system's
	}
	var out []string
	for _, d := range search {
		out = append(out, d+"/"+lib)
	}
	return out
}

// kind is what must be the same of a program and its libraries: the linker passes
// over those of another machine.
type kind struct {
	class   elf.Class
	machine elf.Machine
}

func (r *resolver) kind(p string) kind {
	k, ok := r.kinds[p]
	if ok {
		return k
	}
	if f, err := r.open(p); err == nil {
		var ident [20]byte
		if _, err := f.ReadAt(ident[:], 0); err == nil && string(ident[:4]) == elf.ELFMAG {
			k = kind{elf.Class(ident[elf.EI_CLASS]), elf.Machine(binary.LittleEndian.Uint16(ident[18:]))}
		}
		f.Close()
	}
	r.kinds[p] = k
	return k
}

// expand reads a search path of a file's own. $LIB and $PLATFORM are the linker's
// secrets; such entries are left out.
func (r *resolver) expand(e *elf.File, tag elf.DynTag, p string) []string {
	values, err := e.DynString(tag)
	if err != nil {
		return nil
	}
	var out []string
	for _, v := range values {
		for _, d := range strings.Split(v, ":") {
			d = strings.ReplaceAll(strings.ReplaceAll(d, "${ORIGIN}", path.Dir(p)), "$ORIGIN", path.Dir(p))
			if path.IsAbs(d) && !strings.Contains(d, "$") {
				out = append(out, path.Clean(d))
			}
		}
	}
	return out
}

// finish sorts, leaves out what lies in a tree, and takes the stamps.
func (r *resolver) finish() (*Closure, error) {
	c := &Closure{Programs: r.programs}
	for t := range r.trees {
		if !r.covered(path.Dir(t)) {
			c.Trees = append(c.Trees, t)
		}
	}
	for f := range r.files {
		if !r.covered(f) {
			c.Files = append(c.Files, f)
		}
	}
	for p, to := range r.links {
		if !r.covered(p) {
			c.Links = append(c.Links, Link{p, to})
		}
	}
	slices.Sort(c.Trees)
	slices.Sort(c.Files)
	slices.SortFunc(c.Links, func(a, b Link) int { return strings.Compare(a.Path, b.Path) })
	for _, l := range c.Links {
		r.watched[l.Path] = true
	}
	for f := range r.files {
		r.watched[f] = true
	}
	sum := sha256.New()
	for _, p := range slices.Sorted(maps.Keys(r.watched)) {
		s, err := stampOf(r.prefix + p)
		if err != nil {
			return nil, unknown(p, "a file that the tools need cannot be read").Because(err)
		}
		c.Stamps = append(c.Stamps, s)
	}
	for _, f := range c.Files {
		info, err := os.Lstat(r.prefix + f)
		if err != nil {
			return nil, unknown(f, "a file that the tools need cannot be read").Because(err)
		}
		fmt.Fprintf(sum, "file %q %d %d\n", f, info.Size(), info.ModTime().UnixNano())
	}
	for _, t := range c.Trees {
		info, err := os.Lstat(r.prefix + t)
		if err != nil {
			return nil, unknown(t, "a directory that the tools need cannot be read").Because(err)
		}
		fmt.Fprintf(sum, "tree %q %d\n", t, info.ModTime().UnixNano())
	}
	for _, l := range c.Links {
		fmt.Fprintf(sum, "link %q %q\n", l.Path, l.To)
	}
	c.Digest = policy.FormatDigest(sum.Sum(nil))
	return c, nil
}

// covered tells whether p is, or lies in, one of the trees.
func (r *resolver) covered(p string) bool {
	for ; p != "/" && p != "."; p = path.Dir(p) {
		if r.trees[p] {
			return true
		}
	}
	return false
}
