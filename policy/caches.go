package policy

import (
	"path"
	"slices"
	"strings"
)

// DependencyCache names a directory of a repository whose content depends on
// nothing but some files of it, such as node_modules on package-lock.json. It is
// shared between workspaces in which those files have the same content: the
// base is read-only and what a Worker writes is its own.
type DependencyCache struct {
	// Path is the directory, relative to the repository's root.
	Path string `json:"path"`
	// Key are the files that decide its content, relative to the same.
	Key []string `json:"key"`
}

const (
	maxCaches    = 16
	maxCacheKeys = 32
)

// Validate checks that the names are clean, relative and not git's.
func (c DependencyCache) Validate() error {
	const op = "policy.cache"
	if !cleanRelative(c.Path) {
		return Errorf(CodePolicyInvalid, op, "%q is not a directory inside the repository", Printable(c.Path))
	}
	if len(c.Key) == 0 || len(c.Key) > maxCacheKeys {
		return Errorf(CodePolicyInvalid, op, "the cache of %q has %d key files, not 1 to %d", Printable(c.Path), len(c.Key), maxCacheKeys)
	}
	for _, k := range c.Key {
		if !cleanRelative(k) || k == c.Path || strings.HasPrefix(k, c.Path+"/") {
			return Errorf(CodePolicyInvalid, op, "the key file %q is not a file of the repository outside the cached directory", Printable(k))
		}
	}
	return nil
}

// ValidateCaches checks a repository's caches, none of which may lie in another.
func ValidateCaches(cs []DependencyCache) error {
	if len(cs) > maxCaches {
		return Errorf(CodePolicyInvalid, "policy.cache", "more than %d caches of one repository", maxCaches)
	}
	for i, c := range cs {
		if err := c.Validate(); err != nil {
			return err
		}
		for _, d := range cs[:i] {
			if c.Path == d.Path || strings.HasPrefix(c.Path, d.Path+"/") || strings.HasPrefix(d.Path, c.Path+"/") {
				return Errorf(CodePolicyInvalid, "policy.cache", "the caches %q and %q overlap", Printable(d.Path), Printable(c.Path))
			}
		}
	}
	return nil
}

// ParseDependencyCache reads "PATH=KEY[,KEY...]".
func ParseDependencyCache(s string) (DependencyCache, error) {
	dir, keys, _ := strings.Cut(s, "=")
	c := DependencyCache{Path: strings.TrimSuffix(dir, "/")}
	if keys != "" {
		c.Key = strings.Split(keys, ",")
	}
	return c, c.Validate()
}

func cleanRelative(p string) bool {
	if p == "" || p == "." || len(p) > 1024 || path.IsAbs(p) || path.Clean(p) != p || Printable(p) != p {
		return false
	}
	return !slices.ContainsFunc(strings.Split(p, "/"), func(c string) bool {
		return c == ".." || strings.EqualFold(c, ".git") || len(c) > 255
	})
}

// CacheUse says what a workspace got of a shared cache.
type CacheUse struct {
	// RepositoryID is "" for the build cache.
	RepositoryID RepositoryID `json:"repository_id,omitempty"`
	Path         string       `json:"path"`
	Key          []string     `json:"key,omitempty"`
	// Digest is of the key files' content, "" where one of them does not exist; of
	// a build cache it is the generation.
	Digest string `json:"digest,omitempty"`
	// Warm says that the directory was filled from the cache.
	Warm bool `json:"warm"`
}
