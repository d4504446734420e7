//! Checkpoints: a run that continues where it stopped, and files that are refused.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::common::in_pool;
use crate::training::{ADAM, DATA, SGD, bits, config, train, trainer};
use arena_train::backend::HostBackend;
use arena_train::checkpoint;
use arena_train::cli::Every;
use arena_train::error::TrainError;
use arena_train::model::Cnn;
use arena_train::optimizer::Optimizer;
use arena_train::saving::Saver;
use arena_train::training::{RunConfig, Trainer};
use rstest::rstest;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

fn save(trainer: &Trainer<Cnn<HostBackend>>, path: &Path) -> Result<(), TrainError> {
    let identity = DATA.identity();
    let of = (trainer.config(), identity.as_str());
    checkpoint::save(trainer.model(), of, trainer.step(), path)
}

fn resume(trainer: &mut Trainer<Cnn<HostBackend>>, path: &Path) -> Result<(), TrainError> {
    checkpoint::resume(trainer, (&DATA.train, &DATA.identity()), path)
}

#[rstest]
fn a_resumed_run_continues_as_if_it_had_not_stopped(
    #[values(ADAM, SGD)] optimizer: Optimizer,
    #[values(0, 3, 5, 8)] stop_after: u64,
) {
    in_pool(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let whole = RunConfig { optimizer, ..config(64) };
        let mut unbroken = trainer(whole.clone());
        let (losses, _) = train(&mut unbroken);

        let mut first = trainer(RunConfig { steps: Some(stop_after), ..whole.clone() });
        let (mut broken_losses, _) = train(&mut first);
        save(&first, &path).unwrap();
        drop(first);
        let mut second = trainer(whole);
        resume(&mut second, &path).unwrap();
        assert_eq!(second.step(), stop_after);
        broken_losses.extend(train(&mut second).0);

        assert_eq!(broken_losses, losses);
        assert_eq!(bits(second.model()), bits(unbroken.model()));
    });
}

#[rstest]
#[case::seed(RunConfig { seed: 2, ..config(64) }, "its run has seed 1, this one 2")]
#[case::batch(RunConfig { batch: 32, ..config(64) }, "its run has batch 64, this one 32")]
#[case::epochs(RunConfig { epochs: 3, ..config(64) }, "its run has epochs 2, this one 3")]
#[case::optimizer(RunConfig { optimizer: SGD, ..config(64) }, "its run has optimizer adam")]
fn a_checkpoint_of_another_run_is_refused_and_changes_nothing(
    #[case] other: RunConfig,
    #[case] reason: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    save(&trainer(config(64)), &path).unwrap();
    let mut trainer = trainer(other);
    let before = bits(trainer.model());
    let error = resume(&mut trainer, &path).unwrap_err().to_string();
    assert!(error.contains(reason) && error.contains("run.safetensors"), "{error}");
    assert_eq!((bits(trainer.model()), trainer.step()), (before, 0));
}

#[test]
fn a_damaged_checkpoint_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut trainer = trainer(config(64));
    save(&trainer, &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for damaged in [&whole[..0], &whole[..100], &whole[..whole.len() - 1], b"\x1f\x8b not one"] {
        std::fs::write(&path, damaged).unwrap();
        let error = resume(&mut trainer, &path).unwrap_err().to_string();
        assert!(error.contains("run.safetensors"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let error = resume(&mut trainer, &path).unwrap_err().to_string();
    assert!(error.contains("run.safetensors"), "{error}");
}

/// The file with other metadata, and with other first values of a tensor.
fn rewritten(
    file: &[u8],
    metadata: &[(&str, Option<&str>)],
    values: Option<(&str, f32)>,
) -> Vec<u8> {
    let (_, header) = SafeTensors::read_metadata(file).unwrap();
    let mut entries = header.metadata().clone().unwrap();
    for (name, value) in metadata {
        match value {
            Some(value) => entries.insert((*name).to_owned(), (*value).to_owned()),
            None => entries.remove(*name),
        };
    }
    let tensors = SafeTensors::deserialize(file).unwrap();
    let tensors = tensors.iter().map(|(name, view)| {
        let mut bytes = view.data().to_vec();
        if let Some((_, value)) = values.filter(|(changed, _)| *changed == name) {
            bytes[4..8].copy_from_slice(&value.to_le_bytes());
        }
        (name.to_owned(), (view.shape().to_vec(), bytes))
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, Some(entries)).unwrap()
}

/// As files were written before there were checksums.
const FIRST: [(&str, Option<&str>); 3] =
    [("format", Some("watermark-arena mnist 1")), ("checksum", None), ("data", None)];

#[test]
fn a_checkpoint_of_the_first_format_is_read() {
    in_pool(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let mut first = trainer(RunConfig { steps: Some(2), ..config(64) });
        train(&mut first);
        save(&first, &path).unwrap();
        let old = rewritten(&std::fs::read(&path).unwrap(), &FIRST, None);
        std::fs::write(&path, old).unwrap();
        let mut second = trainer(config(64));
        resume(&mut second, &path).unwrap();
        assert_eq!((second.step(), bits(second.model())), (2, bits(first.model())));
    });
}

#[rstest]
#[case::no_number("conv2.weight", f32::NAN, "conv2.weight is NaN at index 1")]
#[case::infinite("hidden.bias.state1", f32::INFINITY, "hidden.bias.state1 is inf at index 1")]
fn values_that_are_no_numbers_are_neither_read_nor_written(
    #[case] tensor: &str,
    #[case] value: f32,
    #[case] told: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut trainer = trainer(config(64));
    save(&trainer, &path).unwrap();
    let before = bits(trainer.model());
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, rewritten(&whole, &FIRST, Some((tensor, value)))).unwrap();
    let error = resume(&mut trainer, &path).unwrap_err().to_string();
    assert!(error.contains(told) && error.contains("run.safetensors"), "{error}");
    assert_eq!(bits(trainer.model()), before);
}

#[rstest]
#[case("1000000")]
#[case("18446744073709551615")]
fn a_checkpoint_behind_the_end_of_the_run_is_refused(#[case] step: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut trainer = trainer(config(64));
    save(&trainer, &path).unwrap();
    let metadata = [&FIRST[..], &[("step", Some(step))]].concat();
    std::fs::write(&path, rewritten(&std::fs::read(&path).unwrap(), &metadata, None)).unwrap();
    let error = resume(&mut trainer, &path).unwrap_err().to_string();
    assert!(error.contains(&format!("after step {step}, and this run ends at 10")), "{error}");
}

/// Each bit of the header's begin, and of bytes all over the file.
#[test]
fn one_bit_that_is_another_one_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut trainer = trainer(config(64));
    save(&trainer, &path).unwrap();
    let mut file = std::fs::read(&path).unwrap();
    let before = bits(trainer.model());
    let places = (0..700).chain((700..file.len()).step_by(file.len() / 100));
    for (n, at) in places.enumerate() {
        let bit = 1_u8 << (n % 8);
        file[at] ^= bit;
        std::fs::write(&path, &file).unwrap();
        let error = resume(&mut trainer, &path).map_err(|error| error.to_string());
        assert!(error.is_err(), "bit {} of byte {at} is not missed", n % 8);
        file[at] ^= bit;
    }
    assert_eq!((bits(trainer.model()), trainer.step()), (before, 0));
    std::fs::write(&path, &file).unwrap();
    resume(&mut trainer, &path).unwrap();
}

#[test]
fn a_saver_writes_when_it_is_time_and_each_step_once() {
    in_pool(|| {
        let folder = tempfile::tempdir().unwrap();
        let saver = |every| {
            let path = folder.path().join("run.safetensors");
            Saver::new(path, Some(every), config(64), DATA.identity())
        };
        let written = |mut saver: Saver<_>| {
            let mut seen = Vec::new();
            let stop = AtomicBool::new(false);
            let mut trainer = trainer(config(64));
            let path = folder.path().join("run.safetensors");
            let trained = trainer.train_saving(
                &DATA.train,
                &stop,
                |_| (),
                |model, step| {
                    saver.after_step(model, step);
                    seen.extend(path.exists().then_some(step));
                    let _ = std::fs::remove_file(&path);
                },
            );
            assert_eq!(trained.unwrap().steps, 10);
            saver.save(trainer.model(), trainer.step()).unwrap();
            (seen, std::fs::remove_file(&path).is_ok())
        };
        let (always, seldom) = (Every::Time(Duration::ZERO), Every::Time(Duration::from_secs(600)));
        // What it wrote for the last step is not written again.
        assert_eq!(written(saver(always)), ((1..=10).collect(), false));
        assert_eq!(written(saver(seldom)), (vec![], true));
        let third = Every::Steps(std::num::NonZeroU64::new(3).unwrap());
        assert_eq!(written(saver(third)), (vec![3, 6, 9], true));
    });
}

#[test]
fn a_message_quotes_little_of_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let metadata = [("format".to_owned(), "x".repeat(1 << 20))].into();
    let none: [(&str, safetensors::tensor::TensorView<'_>); 0] = [];
    let file = safetensors::serialize(none, Some(metadata)).unwrap();
    std::fs::write(&path, file).unwrap();
    let told = resume(&mut trainer(config(64)), &path).unwrap_err().to_string();
    assert!(told.contains("its format is `xxx") && told.len() < 700, "{}", told.len());
}
