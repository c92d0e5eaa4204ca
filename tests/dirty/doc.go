// Package dirty tries from the command line, and through the daemons, what
// becomes of uncommitted changes: refused and listed, brought along as a stored
// patch, or taken as the working tree has them now.
package dirty
