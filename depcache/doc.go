// Package depcache keeps the shared caches of the Runtime root's build-cache
// directory: dependency directories such as node_modules, keyed by the digest of
// the files that decide their content, and one build cache per project.
//
// It exists because installing the same twenty thousand files for each of many
// agents takes longer than their work, and because the obvious ways of sharing
// them let one agent change what all others run. Here an entry is complete or
// not there, never changes once it is there, and is put there only by the
// Runtime, out of the workspace of a Worker that the policy trusts. Workers see
// it as the lowest layer of an overlay; what they write goes to their own.
//
// An entry is a directory beside a marker that says that it is complete:
//
//	build-cache/deps/<repository>/<digest>{/,.json,.lock}
//	build-cache/work/<project>/<generation>{/,.json,.lock}
//
// Whoever uses an entry is written down in the workspace's own caches.json, so
// that the reference goes when the workspace goes, whatever crashes.
//
// It does not judge what a trusted Worker published: a poisoned entry poisons
// the later workspaces of the same repository, or project, and no others.
package depcache
