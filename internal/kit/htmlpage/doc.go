// Package htmlpage has the parts that all pages of premix share: colours in light and dark,
// type, tables, and the form on a narrow screen and on paper.
//
// A page that premix writes to a file is one HTML file that needs no other: [New] puts the
// style into its head. A page of a service links to the style sheet of [ServeStyle], and to its
// own after it.
package htmlpage
