// Package scope holds what is promised about parts of a repository: a scope
// gives the same files whatever made them, a Worker can widen its own, and a
// mirror that lacks objects has those of a scope before its Worker starts.
package scope
