//! Input files: what is read, and what is refused where.

use arena_plan::formats::{self, minimalloc, trace};
use arena_plan::{Buffer, Options, Plan, PlanError, Violation, solve};
use rstest::rstest;

#[rstest]
#[case::empty("", 1, 1, "the file is empty")]
#[case::only_blank_lines("\n \n", 1, 1, "the file is empty")]
#[case::no_size("id,lower,upper\n", 1, 1, "no column \"size\"")]
#[case::no_end("id,lower,size\n", 1, 1, "no column \"upper\"")]
#[case::both_ends("id,lower,upper,end,size\n", 1, 1, "\"end\" appears twice")]
#[case::unknown_column("id,lower,upper,size,aligment\n", 1, 21, "unknown column \"aligment\"")]
#[case::double_column("id,lower,upper,size,begin\n", 1, 21, "\"begin\" appears twice")]
#[case::short_row("id,lower,upper,size\na,0,1\n", 2, 1, "3 instead of 4")]
#[case::long_row("id,lower,upper,size\na,0,1,2,3\n", 2, 1, "5 instead of 4")]
#[case::no_number("id,lower,upper,size\na,0,1,2\nb,0,one,2\n", 3, 5, "\"one\" is not a whole")]
#[case::empty_number("id,lower,upper,size\na,,1,2\n", 2, 3, "\"\" is not a whole number")]
#[case::negative("id,lower,upper,size\na,0,1,-2\n", 2, 7, "\"-2\" is not a whole number")]
#[case::minus_plus("id,lower,upper,size\na,-+1,1,2\n", 2, 3, "\"-+1\" is not a whole number")]
#[case::negative_backwards("id,lower,upper,size\na,-1,-2,2\n", 2, 6, "death must come after")]
#[case::far_apart("id,lower,upper,size\na,-1,18446744073709551615,2\n", 2, 6, "not a whole number")]
#[case::after_quotes("id,lower,upper,size\n\"a,b\",0,1,x\n", 2, 11, "\"x\" is not a whole")]
#[case::open_quotes("id,lower,upper,size\n\"a,0,1,2\n", 2, 1, "1 instead of 4")]
#[case::plus("id,lower,upper,size\na,+1,2,2\n", 2, 3, "\"+1\" is not a whole number")]
#[case::fraction("id,lower,upper,size\na,0,1,2.5\n", 2, 7, "\"2.5\" is not a whole number")]
#[case::too_large("id,lower,upper,size\na,0,1,18446744073709551616\n", 2, 7, "not a whole number")]
#[case::indented("id,lower,upper,size\na, 0,1,   x\n", 2, 11, "\"x\" is not a whole number")]
#[case::wide_letters("id,lower,upper,size\näöü,0,1,x\n", 2, 9, "\"x\" is not a whole number")]
#[case::double_id("id,lower,upper,size\na,0,1,2\na,0,1,2\n", 3, 1, "id \"a\" appears twice")]
#[case::gaps("id,lower,upper,size,gaps\na,0,9,2,3-5\n", 2, 9, "gaps in lifetimes")]
#[case::backwards("id,lower,upper,size\na,0,1,2\nb,5,5,2\n", 3, 5, "death must come after")]
#[case::end_wraps("id,lower,end,size\na,0,18446744073709551615,2\n", 2, 5, "not a whole number")]
#[case::alignment("id,lower,upper,size,alignment\na,0,1,2,3\n", 2, 9, "not a power of two")]
#[case::fixed_crooked(
    "id,lower,upper,size,alignment,offset\na,0,1,2,4,2\n",
    2,
    11,
    "not a multiple"
)]
#[case::fixed_overlap("id,lower,upper,size,offset\na,0,2,2,0\nb,1,3,2,1\n", 3, 9, "same bytes")]
#[case::sum("id,lower,upper,size\na,0,1,18446744073709551615\n", 1, 1, "add up to more")]
#[case::event_without_step("op,id,size_bytes,stream\n", 1, 1, "no column \"step\"")]
#[case::event_kind("op,id,size_bytes,stream,step\nmalloc,1,8,0,0\n", 2, 1, "unknown op \"malloc\"")]
#[case::alloc_twice("op,id,size_bytes,stream,step\nalloc,1,8,0,0\nalloc,1,8,0,0\n", 3, 7, "twice")]
#[case::free_unknown("op,id,size_bytes,stream,step\nfree,1,8,0,0\n", 2, 6, "is not allocated")]
#[case::free_size(
    "op,id,size_bytes,stream,step\nalloc,1,8,0,0\nfree,1,9,0,0\n",
    3,
    8,
    "9 and 8 bytes"
)]
fn bad_input_is_refused_with_its_place(
    #[case] text: &str,
    #[case] line: usize,
    #[case] column: usize,
    #[case] words: &str,
) {
    let error = formats::read(text, None).unwrap_err();
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!((error.position.line, error.position.column), (line, column), "{error}");
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_place() {
    let error = formats::text(b"id,lower\na,\xff1\n").unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 3: the file is not UTF-8 text");
}

#[test]
fn a_step_without_allocations_is_refused() {
    let text = "op,id,size_bytes,stream,step\nalloc,1,8,0,0\n";
    let error = formats::read(text, Some(3)).unwrap_err();
    assert_eq!(error.to_string(), "line 1, column 1: the trace has no allocation in step 3");
}

#[test]
fn columns_come_in_any_order_under_any_of_their_names_with_either_line_end() {
    let plain = minimalloc::read("id,lower,upper,size\na,0,4,10\nb,2,6,20\n").unwrap();
    for text in [
        "size,buffer,start,upper\n10,a,0,4\n20,b,2,6\n",
        "id,lower,upper,size\r\na,0,4,10\r\nb,2,6,20\r\n",
        "buffer_id,begin,end,size\na,0,3,10\nb,2,5,20", // inclusive ends, no last line end
        "id,lower,upper,size,hint,gaps\na,0,4,10,7,\n\nb,2,6,20,,\n",
        " id , lower,upper,size\na, 0,4 ,10\nb,2,6,20\n",
    ] {
        assert_eq!(minimalloc::read(text).unwrap(), plain, "{text:?}");
    }
}

#[test]
fn alignments_and_fixed_offsets_are_read_where_given() {
    let text = "id,lower,upper,size,alignment,offset\na,0,4,10,8,16\nb,2,6,20,,\n";
    let read = minimalloc::read(text).unwrap();
    let expected = [Buffer::new(0, 4, 10).aligned(8).fixed_at(16), Buffer::new(2, 6, 20)];
    assert_eq!(read.instance.buffers(), expected);
}

#[test]
fn a_written_solution_is_read_again_and_judged_not_obeyed() {
    let problem =
        minimalloc::read("id,lower,upper,size,alignment\na,0,4,10,8\nb,2,6,20,8\n").unwrap();
    let plan = solve(&problem.instance, &Options::default()).plan;
    let mut file = Vec::new();
    minimalloc::write_solution(&mut file, &problem, plan.offsets_bytes()).unwrap();
    let text = String::from_utf8(file).unwrap();
    assert!(!text.contains('\r'));
    let (read, offsets) = minimalloc::read_solution(&text).unwrap();
    assert_eq!(read, problem);
    assert_eq!(offsets, plan.offsets_bytes());
    // Overlapping offsets are no input error: the validator says so.
    let (read, offsets) =
        minimalloc::read_solution("id,lower,upper,size,offset\na,0,4,9,0\nb,0,4,9,3\n").unwrap();
    let refused = Plan::new(read.instance, offsets).unwrap_err();
    assert!(matches!(refused, PlanError::Violation(Violation::Overlap { .. })), "{refused}");
}

#[test]
fn a_solution_must_place_every_buffer() {
    let error = minimalloc::read_solution("id,lower,upper,size,offset\na,0,4,9,\n").unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 9: this row has no offset");
    let error = minimalloc::read_solution("id,lower,upper,size\na,0,4,9\n").unwrap_err();
    assert!(error.to_string().contains("no column \"offset\""), "{error}");
}

#[test]
fn a_step_holds_what_is_born_in_it_until_its_end() {
    let text = "op,id,size_bytes,stream,step\n\
                alloc,w,100,0,0\n\
                mark,0,0,0,0\n\
                alloc,a,10,0,1\n\
                free,w,100,0,1\n\
                alloc,b,20,0,1\n\
                free,a,10,0,1\n\
                free,b,20,0,2\n\
                alloc,c,30,0,2\n";
    let read = trace::read(text, Some(1)).unwrap();
    assert_eq!(read.labels, ["a", "b"]);
    // The weight's death is no event of this step; b outlives it.
    assert_eq!(read.instance.buffers(), [Buffer::new(0, 2, 10), Buffer::new(1, 3, 20)]);
    let whole = trace::read(text, None).unwrap();
    assert_eq!(whole.labels, ["w", "a", "b", "c"]);
    assert_eq!(whole.instance.buffers()[2], Buffer::new(3, 5, 20));
}

#[test]
fn negative_times_are_read_and_written_as_they_were() {
    let text = "id,lower,upper,size\na,-5,-2,10\nb,-2,3,20\n";
    let labelled = formats::read(text, None).unwrap();
    assert_eq!(labelled.instance.buffers(), [Buffer::new(0, 3, 10), Buffer::new(3, 8, 20)]);
    let mut written = Vec::new();
    minimalloc::write_solution(&mut written, &labelled, &[0, 0]).unwrap();
    assert_eq!(
        String::from_utf8(written).unwrap(),
        "id,lower,upper,size,offset\na,-5,-2,10,0\nb,-2,3,20,0\n"
    );
    let inclusive = formats::read("id,lower,end,size\na,-1,-1,10\n", None).unwrap();
    assert_eq!(inclusive.instance.buffers(), [Buffer::new(0, 1, 10)]);
}

#[test]
fn a_byte_order_mark_and_quoted_cells_are_read_and_names_are_quoted_where_needed() {
    let text = "\u{feff}\"id\",\"lower\",upper,size\n\"a, \"\"b\"\"\",\"0\",2,10\nc,1,3,20\n";
    let labelled = formats::read(text, None).unwrap();
    assert_eq!(labelled.labels, ["a, \"b\"", "c"]);
    let mut written = Vec::new();
    minimalloc::write_solution(&mut written, &labelled, &[0, 10]).unwrap();
    let written = String::from_utf8(written).unwrap();
    assert!(written.contains("\n\"a, \"\"b\"\"\",0,2,10,0\nc,1,3,20,10\n"), "{written}");
    assert_eq!(minimalloc::read_solution(&written).unwrap(), (labelled, vec![0, 10]));
    let trace = "\u{feff}\"op\",id,size_bytes,stream,step\nalloc,\"x,1\",8,0,0\n";
    assert_eq!(formats::read(trace, None).unwrap().labels, ["x,1"]);
}
