package helper

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/internal/toolroot"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// hostRoot is what the host's system directories look like: which of them are
// symbolic links (a merged /usr), and the small files of /etc that programs
// need. It is read once; the files again when their mtime changed.
type hostRoot struct {
	links map[string]string // "/bin" → "usr/bin"
	dirs  []string          // "/usr", and "/lib" where it is a directory

	tools toolroot.Cache

	mu    sync.Mutex
	files map[string]cachedFile
}

type cachedFile struct {
	info    fs.FileInfo
	content []byte
}

var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"}

// etcDirs and etcFiles are what is left of /etc: what the dynamic linker, TLS
// libraries, time zones, name services and language runtimes read. Nothing of
// the host's users, keys or services is among them.
var (
	etcDirs = []string{ // each is a mount, and costs every launch some tens of µs
		"/etc/alternatives",  // Debian's /usr/bin/* point through it
		"/etc/ssl/certs",     // TLS trust anchors, as links into /usr/share
		"/etc/pki/tls/certs", // the same on Fedora
		"/etc/pki/ca-trust/extracted",
		"/etc/java-11-openjdk", "/etc/java-17-openjdk", "/etc/java-21-openjdk", // the JDK's own configuration, linked from /usr/lib/jvm
	}
	etcFiles = []string{
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ssl/openssl.cnf",
		"/etc/mime.types", "/etc/magic", "/etc/protocols", "/etc/services",
		"/etc/debian_version",
	}
)

// The generated files of the sandbox's /etc. The Worker is the only user in
// it, beside root and nobody, whose names programs look up.
const (
	etcPasswd   = "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nworker:x:1000:1000:Worker:/home/worker:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	etcGroup    = "root:x:0:\nworker:x:1000:\nnogroup:x:65534:\n"
	etcNSSwitch = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
	etcHosts    = "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 worker\n"
	// A commit needs an identity; the Worker's own configuration or environment
	// goes before this.
	etcGitconfig = "[user]\n\tname = worker\n\temail = worker@localhost\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n"
)

// maxCachedFile is above the largest ld.so.cache and services files seen.
const maxCachedFile = 1 << 20

func readHostRoot() (*hostRoot, error) {
	h := &hostRoot{links: make(map[string]string), files: make(map[string]cachedFile)}
	for _, d := range systemDirs {
		info, err := os.Lstat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(d)
			if err != nil {
				return nil, err
			}
			h.links[d] = to
		case info.IsDir():
			h.dirs = append(h.dirs, d)
		}
	}
	for _, d := range etcDirs {
		if info, err := os.Lstat(d); err == nil && info.IsDir() {
			h.dirs = append(h.dirs, d)
		}
	}
	return h, nil
}

// file returns a small host file's content, or nil if there is none.
func (h *hostRoot) file(name string) []byte {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxCachedFile {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c, ok := h.files[name]; ok && os.SameFile(c.info, info) && c.info.ModTime().Equal(info.ModTime()) && c.info.Size() == info.Size() {
		return c.content
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil // as if it were not there: the sandbox has less, not more
	}
	h.files[name] = cachedFile{info, b}
	return b
}

// ops is the read-only system part of a sandbox's root, for the root profile
// "system" with or without a network.
func (h *hostRoot) ops(network bool) []mounts.Op {
	ro := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	var ops []mounts.Op
	for _, d := range h.dirs {
		ops = append(ops, mounts.Bind{Target: d, Source: mounts.Source{Path: d}, Recursive: d == "/usr", Attr: ro})
	}
	ops = append(ops, h.topLinks()...)
	return append(ops, h.etcOps(network)...)
}

// topLinks are "/bin" and the like where they are links.
func (h *hostRoot) topLinks() []mounts.Op {
	var ops []mounts.Op
	for _, d := range systemDirs {
		if to, ok := h.links[d]; ok {
			ops = append(ops, mounts.Symlink{Target: d, To: to})
		}
	}
	return ops
}

// etcOps copies the files of the host's /etc.
func (h *hostRoot) etcOps(network bool) []mounts.Op {
	ops := h.copies(etcFiles...)
	ops = append(ops, h.copies("/etc/localtime")...)
	ops = append(ops, mounts.Symlink{Target: "/etc/os-release", To: "../usr/lib/os-release"})
	if network {
		ops = append(ops, h.copies("/etc/resolv.conf")...)
	}
	return ops
}

// toolOps is the read-only system part of a root of tools. Each is a mount of its
// own, at the path that the host has it at; which they are was found out by the
// helper, from a name. The profile system adds what it has of /etc, but for what
// leads to further programs.
func (h *hostRoot) toolOps(c *toolroot.Closure, profile policy.RootProfile, network bool) []mounts.Op {
	ro := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	ops := h.topLinks()
	for _, t := range c.Trees {
		ops = append(ops, mounts.Bind{Target: t, Source: mounts.Source{Path: t}, Recursive: true, Attr: ro})
	}
	for _, f := range c.Files {
		ops = append(ops, mounts.Bind{Target: f, Source: mounts.Source{Path: f}, IsFile: true, Attr: ro})
	}
	for _, l := range c.Links {
		if _, top := h.links[l.Path]; !top {
			ops = append(ops, mounts.Symlink{Target: l.Path, To: l.To})
		}
	}
	if profile != policy.RootSystem {
		return append(ops, h.copies("/etc/ld.so.cache", "/etc/ld.so.conf")...)
	}
	for _, d := range h.dirs {
		if strings.HasPrefix(d, "/etc/ssl/") || strings.HasPrefix(d, "/etc/pki/") {
			ops = append(ops, mounts.Bind{Target: d, Source: mounts.Source{Path: d}, Attr: ro})
		}
	}
	return append(ops, h.etcOps(network)...)
}

// copies are those files of the host that exist.
func (h *hostRoot) copies(names ...string) []mounts.Op {
	var ops []mounts.Op
	for _, f := range names {
		if b := h.file(f); b != nil {
			ops = append(ops, mounts.File{Target: f, Mode: 0o644, Content: b})
		}
	}
	return ops
}

// generated is the part of /etc that every root profile has.
func generatedEtc(r *EgressRequest) []mounts.Op {
	var ops []mounts.Op
	hosts := etcHosts
	if r != nil {
		lines, server := egress.Hosts(r.Network, r.Secrets)
		hosts += lines
		if server.IsValid() {
			ops = append(ops, mounts.File{Target: "/etc/resolv.conf", Mode: 0o644, Content: []byte("nameserver " + server.String() + "\n")})
		}
	}
	for _, f := range []struct{ name, content string }{
		{"passwd", etcPasswd}, {"group", etcGroup}, {"nsswitch.conf", etcNSSwitch},
		{"hosts", hosts}, {"gitconfig", etcGitconfig}, {"hostname", "worker\n"},
	} {
		ops = append(ops, mounts.File{Target: path.Join("/etc", f.name), Mode: 0o644, Content: []byte(f.content)})
	}
	return append(ops, mounts.Symlink{Target: "/etc/mtab", To: "../proc/self/mounts"})
}
