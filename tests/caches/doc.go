// Package caches installs real projects, an npm one and a Go one, in workspaces
// without a network, and wants the second workspace to find them installed.
package caches
