package depcache

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"runtime"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// Key names an entry: its set, and its name there.
type Key struct{ Set, Name string }

var namePattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// DependencySet holds a repository's dependency caches, BuildSet a project's
// build cache. The ids have been checked.
func DependencySet(repo policy.RepositoryID) string { return "deps/" + string(repo) }
func BuildSet(ws policy.WorkspaceID) string         { return "work/" + string(ws) }

// Valid checks a name that was read from a file or a message.
func (k Key) Valid() bool { return namePattern.MatchString(k.Name) }

func (k Key) dir() string    { return rootdir.BuildCache + "/" + k.Set }
func (k Key) marker() string { return k.Path() + ".json" }
func (k Key) lock() string   { return k.Path() + ".lock" }

// Path is the entry's directory, relative to the Runtime root.
func (k Key) Path() string { return k.dir() + "/" + k.Name }

// Digest names a dependency cache by what decides its content: the key files, as
// read gives them, where it lies, and the machine's architecture. It is "" where
// a key file does not exist.
func Digest(c policy.DependencyCache, read func(name string) (content []byte, found bool, err error)) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "yoi dependency cache 1\x00%s\x00%s\x00", runtime.GOARCH, c.Path)
	for _, name := range c.Key {
		b, found, err := read(name)
		if err != nil || !found {
			return "", err
		}
		sum := sha256.Sum256(b)
		fmt.Fprintf(h, "%s\x00%x\x00", name, sum)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// NewGeneration names a new entry of a build cache.
func NewGeneration() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}
