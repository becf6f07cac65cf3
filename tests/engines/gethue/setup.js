// The package expects what its own pages put beside knockout and into the window before anything else.
import ko from 'knockout';
import komapping from 'knockout.mapping';

ko.mapping = komapping;
